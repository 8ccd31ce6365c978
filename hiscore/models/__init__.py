"""Checkpoints: the families that are served (`families`), their configs, weights and forward passes."""
