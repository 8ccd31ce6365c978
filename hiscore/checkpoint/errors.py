"""This package's exception."""


class CheckpointError(Exception):
    """A checkpoint cannot be used. The message tells the operator why and what to do."""
