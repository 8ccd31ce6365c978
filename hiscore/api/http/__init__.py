"""HTTP itself: bodies, errors, keys, events, metrics and traces, whatever the route."""
