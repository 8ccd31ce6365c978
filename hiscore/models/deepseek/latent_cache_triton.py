"""`StagedLatents` by kernels, for CUDA devices: neither scores of single heads nor gathered latents in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from hiscore.device.copies import upload
from hiscore.kernels import full_attention, indexer_prefill, listed_attention
from hiscore.models.deepseek.expanded import Expanded, FullRows
from hiscore.models.deepseek.indexer import IndexQuery
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.models.deepseek.mla import Projected
from hiscore.models.deepseek.prefill_tiles import NewRows, plan_full, plan_prefill

SELECT_BLOCK, SELECT_WARPS = 1024, 8


@dataclass(frozen=True)
class LatentLaunch:
    """Block sizes of a launch: tokens (and query heads) at a time, warps, stages of the software pipeline."""

    n: int
    warps: int
    stages: int
    m: int = 16


@dataclass(frozen=True)
class _Pass:
    tiles: Tensor
    starts: Tensor
    seen: Tensor
    lists: Tensor
    width: int


class KernelLatents(StagedLatents):
    """`StagedLatents` whose rows, of float32 or bfloat16, attend to lists of pool slots.

    Every row that selects has a list of its own; all others attend with keys and values expanded.
    """

    def _divide(self, segments: Sequence[Segment]) -> None:
        plan = plan_prefill([NewRows(each.rows, len(each.slots)) for each in segments], self._max_elements)
        assert plan.seen.min() > self._top_k
        self._slots = torch.cat([segment.slots.int() for segment in segments])
        self._counts = torch.full((len(plan.seen),), self._top_k, dtype=torch.int32, device=self._device)
        self._begins = torch.arange(len(plan.seen), device=self._device) * self._top_k
        self._lists = torch.empty(len(plan.seen) * self._top_k, dtype=torch.int32, device=self._device)
        self._passes = [
            _Pass(
                upload(each.tiles, self._device),
                upload(plan.starts[each.rows], self._device),
                upload(plan.seen[each.rows], self._device),
                self._lists[each.rows.start * self._top_k : each.rows.stop * self._top_k],
                each.width,
            )
            for each in plan.passes
        ]

    def attend(self, layer: int, q: Tensor, index: IndexQuery | None) -> Tensor:
        if index is not None:
            for part in self._passes:
                self._select_slots(part, index, self.index_keys[self._index_of[layer]])
        q = q.contiguous()
        pool, heads, value = self.pool[layer, :, 0, 0], q.shape[1], self._a.latent_rank
        out = q.new_empty((*q.shape[:2], value))
        tail, launch = self._a.rope_dim, attention_launch(q.dtype)
        listed_attention.attend_lists[(len(q) * triton.cdiv(heads, launch.m),)](
            q, pool, self._lists, self._begins, self._counts, out, self._a.attention_scale, q.stride(0),
            HEADS=heads, VALUE=value, TAIL=tail,
            PADDED_VALUE=_padded(value), PADDED_TAIL=_padded(tail), M=launch.m, N=launch.n,
            PRECISION=_precision(q.dtype), num_warps=launch.warps, num_stages=launch.stages,
        )  # fmt: skip
        return out

    @property
    def _expanded_elements(self) -> int:
        # As many bytes as there are of scores, which are float32, in a forward that selects.
        return 4 * self._max_elements // self.pool.dtype.itemsize

    def _attend_expanded(
        self, new: Projected, seen: Expanded, group: Sequence[FullRows], heads: slice, out: Tensor
    ) -> None:
        a, launch = self._a, full_launch(out.dtype)
        rows = [NewRows(each.count, each.length) for each in group]
        tiles = upload(plan_full(rows, [each.rows.start for each in group], launch.m), out.device)
        q, rotated, out = (part[:, heads] for part in (new.nope, new.rotated, out))
        full_attention.attend_full[(len(tiles), heads.stop - heads.start)](
            q, rotated, seen.keys, seen.tails, seen.values, tiles, out, a.attention_scale,
            *q.stride()[:2], *rotated.stride()[:2], *seen.keys.stride()[:2], seen.tails.stride(0),
            *seen.values.stride()[:2], *out.stride()[:2],
            KEY=a.nope_dim, TAIL=a.rope_dim, VALUE=a.value_dim,
            PADDED_KEY=_padded(a.nope_dim), PADDED_TAIL=_padded(a.rope_dim), PADDED_VALUE=_padded(a.value_dim),
            M=launch.m, N=launch.n, FIELDS=tiles.shape[1], PRECISION=_precision(q.dtype),
            num_warps=launch.warps, num_stages=launch.stages,
        )  # fmt: skip

    def _select_slots(self, part: _Pass, index: IndexQuery, keys: Tensor) -> None:
        q, gates = index.q.contiguous(), index.gates.contiguous()
        heads, key_dim = q.shape[1:]
        scores = torch.empty((len(part.seen), part.width), dtype=torch.uint32, device=q.device)
        launch = scores_launch(q.dtype)
        indexer_prefill.score_tiles[(len(part.tiles), triton.cdiv(part.width, launch.n))](
            q, gates, keys, self._slots, part.tiles, scores, q.stride(0), gates.stride(0), part.width,
            HEADS=heads, HEAD_DIM=key_dim, PADDED=_padded(key_dim), M=_padded(heads), N=launch.n,
            FIELDS=part.tiles.shape[1], PRECISION=_precision(q.dtype),
            num_warps=launch.warps, num_stages=launch.stages,
        )  # fmt: skip
        indexer_prefill.select_slots[(len(part.seen),)](
            scores, self._slots, part.starts, part.seen, part.lists, part.width, self._top_k,
            BLOCK=min(SELECT_BLOCK, triton.next_power_of_2(part.width)), num_warps=SELECT_WARPS,
        )  # fmt: skip


def scores_launch(dtype: torch.dtype) -> LatentLaunch:
    """Block sizes of the scores. A product in float32 takes many registers, as the compiler reports."""
    return (
        LatentLaunch(n=16, warps=8, stages=1)
        if dtype == torch.float32
        else LatentLaunch(n=128, warps=4, stages=2)
    )


def attention_launch(dtype: torch.dtype) -> LatentLaunch:
    """Block sizes of attention at latents of 512: 64 heads are the fewest that Hopper multiplies at full speed."""
    if dtype == torch.float32:
        return LatentLaunch(m=16, n=16, warps=8, stages=1)
    return LatentLaunch(m=64, n=32, warps=8, stages=2)


def full_launch(dtype: torch.dtype) -> LatentLaunch:
    if dtype == torch.float32:
        return LatentLaunch(m=16, n=16, warps=4, stages=1)
    return LatentLaunch(m=128, n=64, warps=8, stages=2)


def _padded(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))


def _precision(dtype: torch.dtype) -> str:
    """Triton's default for float32 would be TF32, with 10 bits of mantissa."""
    return "ieee" if dtype == torch.float32 else "tf32"
