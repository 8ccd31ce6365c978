"""This package's exception."""


class CheckpointError(Exception):
    """A checkpoint cannot be used. The message, for whoever starts the server, says why and what to do."""
