"""Masks of sequences with a grammar, computed on threads of their own while steps run.

The mask for a token needs the token before, which is read while the next step already runs. So a sequence with a
grammar sits out steps until its mask is there: every other step where others keep the device busy, none if it is
alone. Sequences without a grammar never wait for it.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hiscore.arrays import Int32
from hiscore.decoding.sequence import Sequence
from hiscore.server.host import usable_cores

MAX_THREADS = 8


class MaskThreads:
    """Computes masks for the engine's thread alone; `wake` is called on another thread when a mask is there."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pending: list[tuple[Sequence, Future[Int32]]] = []
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, usable_cores()), "hiscore-masks")

    def advance(self, sequence: Sequence, token: int) -> None:
        """Start on the mask that follows a token; does nothing for a sequence without a grammar."""
        if sequence.call.grammar is not None:
            future = self._threads.submit(sequence.call.grammar.advance, token)
            future.add_done_callback(lambda _: self._wake())
            self._pending.append((sequence, future))

    def collect(self) -> list[tuple[Sequence, Exception]]:
        """Give sequences the masks that are there, and return the sequences whose grammar has failed."""
        failed = []
        pending, self._pending = self._pending, []
        for sequence, future in pending:
            if not future.done():
                self._pending.append((sequence, future))
            elif isinstance(error := future.exception(), Exception):
                failed.append((sequence, error))
            else:
                sequence.mask = future.result()
        return failed

    def close(self) -> None:
        self._threads.shutdown()
