"""Decoding: streaming generation with the KV cache offloaded to the host."""
