"""The KV cache of decode: every tensor of it, and how memory is divided among them."""
