"""From requests to one ragged batch: query cache, packed prompts, rows."""
