from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hiscore.models.activations import output_bytes
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.sharding import of_rank
from hiscore.parallel.rank import Rank
from hiscore.parallel.shard import Shard
from hiscore.prefill.row_counts import SHORT_ROWS
from hiscore.scoring import decoder_scorer
from hiscore.scoring.decoder_scorer import Checkpoint, claim
from hiscore.server.plan import MemoryPlan
from hiscore.server.server_resources import ServerResources

BUDGET = 2_048


class Claims:
    plan: MemoryPlan

    def free(self, place: str, measure: Callable[[], int]) -> int:
        return 2**40

    def claim(self, owner: str, plan: MemoryPlan) -> None:
        self.plan = plan


@pytest.mark.parametrize(
    ("ranks", "original_context", "sliced"), [(1, None, True), (2, None, False), (1, 64, False)]
)
def test_only_where_there_are_slices_their_outputs_are_claimed(
    ranks: int, original_context: int | None, sliced: bool, checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several ranks have none, nor has a checkpoint with longrope."""
    directory, (whole, more) = checkpoints("llama")[0], read_architecture(checkpoints("llama")[0], None)
    a: Architecture = replace(whole, original_context=original_context)
    monkeypatch.setattr(decoder_scorer, "read_architecture", lambda *_: (a, more))
    claims, shard = Claims(), Shard(0, ranks)
    rank = Rank(torch.device("cuda:0"), SimpleNamespace(shard=shard), {"resources": ServerResources(claims)})
    claim(rank, Checkpoint(directory, "float32", None, BUDGET), cache_bytes=0)
    (outputs,) = [line.bytes for line in claims.plan.lines if line.name == "outputs of CUDA graphs"]
    assert outputs == output_bytes(of_rank(a, shard), BUDGET + SHORT_ROWS * sliced, 4)
