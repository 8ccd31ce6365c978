"""Decoding: streams of tokens, with their keys and values backed up to the host."""
