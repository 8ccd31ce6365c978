"""Scores, read out of hidden states."""
