"""Cores for the threads that score, and for everything else: the setting SCORER_CORES."""

import os

from hiscore.launcher.device_choice import choose_device
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.repository import num_instances
from hiscore.settings import ServeSettings


def other_cores(settings: ServeSettings) -> set[int]:
    """Where the rest of the server may run; empty if no core is set aside."""
    return os.sched_getaffinity(0) - set(settings.own_cores) if settings.own_cores else set()


def check_own_cores(settings: ServeSettings) -> None:
    """Refuse cores that the scorer's instances cannot have, or that leave none to the rest of the server.

    Raises:
        LaunchError: They are of no use.
    """
    own = settings.own_cores
    if not own:
        return
    named = f"SCORER_CORES is {settings.scorer_cores}"
    if missing := sorted(set(own) - os.sched_getaffinity(0)):
        raise LaunchError(f"{named}: {missing[0]} is none of the cores that may be used here")
    device, _ = choose_device(settings.device)
    instances = num_instances(settings, device)
    if len(own) != instances or len(set(own)) != len(own):
        raise LaunchError(
            f"{named}: {instances} different numbers are needed, one for each instance of scorer"
        )
    if not other_cores(settings):
        raise LaunchError(
            f"{named}: these are all that may be used here, leave some to the rest of the server"
        )
