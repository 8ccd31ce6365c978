"""Families of checkpoints: what config.json says, which are supported, their weights and forward pass."""
