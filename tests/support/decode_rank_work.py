"""Work of ranks that decode, in tests."""

from pathlib import Path
from typing import Any

import torch

from hiscore.decoding.worker.parallel_worker import PLACE
from hiscore.parallel.rank import Rank
from tests.support.decoding import build
from tests.support.late_copies import LateCopies


def build_on(
    rank: Rank,
    path: Path,
    late: int | None,
    deaf: bool,
    given: tuple[Any, ...],
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> None:
    """A worker on each rank.

    Args:
        rank: One of them.
        path: Of the checkpoint.
        late: The rank whose copies are late; None: none.
        deaf: Whether its forwards wait for no copy.
        given: Selector, tokens selected and tokens in the buffer.
        dtype: Of weights, keys and values.
        settings: Of `build`.
    """
    worker = build(path, *given, dtype=dtype, device=str(rank.device), group=rank.group, **settings)
    if late == rank.shard.rank:
        LateCopies(10_000 if deaf else 20, deaf).install(worker)
    rank.held[PLACE] = worker
