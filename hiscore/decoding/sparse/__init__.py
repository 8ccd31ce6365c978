"""Sparse attention over the offloaded KV cache: selection, residency, swap-in."""
