"""Work for ranks in tests of latent attention, in a module that their processes can import."""

from pathlib import Path

import torch
from torch import Tensor

from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.parallel.rank import Rank

PLACE = "decoder"


def load(rank: Rank, checkpoint: Path, keeps_fp8: bool) -> None:
    rank.held[PLACE] = DsaDecoder(
        checkpoint, rank.device, torch.float32, keeps_fp8=keeps_fp8, group=rank.group
    )


def hidden(rank: Rank, ids: list[int]) -> Tensor:
    found = hidden_of(rank.held[PLACE], torch.tensor(ids))
    most = rank.group.max(found.clone())
    assert torch.equal(most, -rank.group.max(-found))
    return found


def hidden_of(decoder: DsaDecoder, ids: Tensor) -> Tensor:
    staged = StagedLatents(decoder.architecture, len(ids), decoder.device, decoder.dtype)
    staged.plan([Segment(torch.arange(len(ids)), len(ids))])
    with torch.inference_mode():
        return decoder.tail(*decoder.body(ids.int(), torch.arange(len(ids)).int(), staged))
