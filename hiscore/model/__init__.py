"""The decoder: one compact implementation of every family, read from a Hugging Face checkpoint."""
