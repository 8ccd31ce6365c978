"""The launcher's exception."""


class LaunchError(Exception):
    """The server cannot start or has stopped. The message says why and, if known, what to do."""


class NeverReady(LaunchError):
    """A start would not end, for no fault of the models: another may succeed."""
