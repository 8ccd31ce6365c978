"""Launch something for several rows, so that what one of them lacks is its own failure and no other's."""

import logging
from collections.abc import Callable, Iterable

import torch

from hiscore.errors import Code, RequestError
from hiscore.serving.device_loss import is_device_lost

log = logging.getLogger(__name__)


def launch_for(
    rows: Iterable[int], launch: Callable[[list[int]], None], failures: dict[int, Exception]
) -> None:
    """Launch for all rows at once; if that fails, for each alone.

    Args:
        rows: Of a batch; those that have failed before are left out.
        launch: For some of the rows. If it raises it has changed nothing that it would not change again.
        failures: By row: takes what a row raises alone.

    Raises:
        Exception: The device is lost.
    """
    going = [row for row in rows if row not in failures]
    if not going or (error := error_of(lambda: launch(going))) is None:
        return
    if len(going) == 1:
        failures[going[0]] = error
        return
    log.warning("%d rows cannot be sampled together, so each is alone: %s", len(going), error)
    for row in going:
        launch_for([row], launch, failures)


def error_of(launch: Callable[[], None]) -> Exception | None:
    """What a launch raises, as its caller may be told; nothing that it allocated is held any more.

    Raises:
        Exception: The device is lost: no row could be launched alone.
    """
    try:
        launch()
    except torch.OutOfMemoryError as lacking:
        log.error("no memory to sample: %s", lacking)
        return RequestError(
            "there is no memory left for what this request's sampling needs", Code.UNAVAILABLE
        )
    except Exception as error:
        if is_device_lost(error):
            raise
        log.exception("sampling fails")
        return error.with_traceback(None)
    return None
