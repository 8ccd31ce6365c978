"""Errors that say why a checkpoint cannot be computed."""


class UnsupportedCheckpoint(Exception):
    """No model here computes this checkpoint; the message says why."""
