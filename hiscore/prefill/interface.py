"""The interface of runners of packed prefills."""

from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from hiscore.attention.metadata import Forward
from hiscore.device.copies import PinnedArrays
from hiscore.recurrence.gated_delta_net import Steps

T = TypeVar("T")


def launch_all(slices: Generator[None, None, T]) -> T:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: T = end.value
            return result


class ForwardRunner(Protocol):
    """Computes packed forwards on one device. If not said otherwise, each is launched at once."""

    between: int = 0
    """Rows of a forward that may be launched between two slices of another; 0: there are no slices."""

    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        """Compute the forwards of a batch, in order. On CUDA this only launches the work.

        The results are the final hidden states of all scored rows, [R, hidden], forward after forward.
        """
        ...

    def slices(self, forward: Forward) -> int:
        """Number of slices of layers in which `in_slices` launches a forward."""
        return 1

    def in_slices(self, forward: Forward, arrays: PinnedArrays) -> Generator[None, None, Tensor]:
        """Compute one forward, see `forward`: each step launches a slice of it.

        Until the last one, other forwards have no more rows than `between`, and neither read what this one adds to
        the pool nor change what it reads or writes there; they may write the same again.
        """
        yield from ()
        return self.forward([forward])


class Runner(ForwardRunner, Protocol):
    """A `ForwardRunner` of a decoder, with its own KV pool."""

    pool: Tensor  # [layers, slots, 2, kv_heads, head_dim]
    steps: Steps | None = None
    """Computes steps of recurrent layers in the same pool of states; None: there are no such layers."""
