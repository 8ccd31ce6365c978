"""A CUDA stream beside the current one, for work that some of what follows need not wait for."""

from collections.abc import Callable

import torch

PRIORITY = -2
"""Priority above that of steps: few programs, which must not queue behind the many that they run beside."""


class SideStream:
    """Runs work on a stream, in a graph's capture on a branch, and without a CUDA device in order."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=PRIORITY) if device.type == "cuda" else None

    def launch(self, work: Callable[[], None]) -> Callable[[], None]:
        """Launch work that follows all that was launched before on the current stream.

        Call what is returned: it makes the current stream wait for the work. Until then it keeps the tensors that
        the work reads, of whose use on the other stream the allocator knows nothing.
        """
        if self._stream is None:
            work()
            return _nothing
        begin, end = torch.cuda.Event(), torch.cuda.Event()
        begin.record()
        self._stream.wait_event(begin)
        with torch.cuda.stream(self._stream):
            work()
        end.record(self._stream)
        kept = [work]

        def wait() -> None:
            torch.cuda.current_stream().wait_event(end)
            kept.clear()

        return wait


def _nothing() -> None:
    """Wait for nothing: work has run in order."""
