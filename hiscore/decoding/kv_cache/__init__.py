"""The KV cache of decode: every tensor of it, and what a sequence has of them."""
