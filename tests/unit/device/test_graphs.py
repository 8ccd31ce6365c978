"""One set of buffers for the outputs of all graphs."""

import pytest
import torch

from hiscore.device.graphs import StaticOutputs


def outputs(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=generator), torch.randn(rows, 5, generator=generator).bfloat16()


def test_graphs_of_every_size_leave_their_outputs_in_the_same_memory() -> None:
    static = StaticOutputs()
    static.allocate(*outputs(8))
    kept = {rows: static.keep(*outputs(rows, seed=rows)) for rows in (8, 5, 1)}
    for place in range(2):
        assert len({each[place].data_ptr() for each in kept.values()}) == 1
    for rows, each in kept.items():
        assert [tuple(part.shape) for part in each] == [(rows, 3), (rows, 5)]
        assert [part.dtype for part in each] == [torch.float32, torch.bfloat16]
    # No bit changes, and the last one overwrites those before.
    assert all(
        torch.equal(*pair) for pair in zip(static.keep(*outputs(5, seed=9)), outputs(5, seed=9), strict=True)
    )
    assert torch.equal(kept[1][0], outputs(5, seed=9)[0][:1])


def test_only_the_largest_graph_makes_the_buffers() -> None:
    static = StaticOutputs()
    static.allocate(*outputs(4))
    (before, _) = static.keep(*outputs(4))
    static.allocate(*outputs(2))
    (after, _) = static.keep(*outputs(2))
    assert after.data_ptr() == before.data_ptr()
    with pytest.raises(ValueError, match="an output of 5 rows, but the largest graph has 4"):
        static.keep(*outputs(5))
