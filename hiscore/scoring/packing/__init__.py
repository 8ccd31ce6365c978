"""Packing of requests into one ragged batch: query cache, packed prompts, rows."""
