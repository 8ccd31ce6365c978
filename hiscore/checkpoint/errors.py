"""The one exception of this package, for whoever starts the server."""


class CheckpointError(Exception):
    """A checkpoint cannot be had. The message names what is wrong and what to do; it may hold paths."""
