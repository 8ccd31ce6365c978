"""Quantised checkpoints: which schemes are served (`schemes`), and a file for each format that is read."""
