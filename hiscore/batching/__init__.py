"""Dynamic batching: which requests are computed together, when a batch is launched, who gets which answer."""
