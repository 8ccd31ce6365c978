"""The launcher's exceptions."""


class LaunchError(Exception):
    """The server cannot start or has stopped. The message says why and, if known, what to do."""


class BadSetting(LaunchError):
    """A setting is wrong, and was found to be before anything was started: another try fails likewise."""


class NeverReady(LaunchError):
    """A start would not end, for no fault of the models: another may succeed."""
