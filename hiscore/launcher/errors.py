"""The one exception of the launcher."""


class LaunchError(Exception):
    """The server cannot start or has stopped; the message says why and, where we know, what to do."""
