"""`Recurrence` of gated delta nets in PyTorch, for the CPU; the rule is computed in float32."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hiscore.device.numerics import widen
from hiscore.recurrence.gated_delta_net import NORM_OF_KEYS_EPS, RecurrentShape, RecurrentWeights
from hiscore.recurrence.gated_delta_rule import GatedDeltaRule, Tokens
from hiscore.recurrence.metadata import SpanBatch, StatePlan
from hiscore.recurrence.state_pool import StatePool


class GatedDeltaLayer:
    """Computations of a layer before and behind the rule, which are the same for prompts and for single tokens."""

    def __init__(self, shape: RecurrentShape, pool: StatePool, norm_eps: float) -> None:
        self._shape, self._pool, self._norm_eps = shape, pool, norm_eps

    def _split(self, weights: RecurrentWeights, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs of the convolution, output gates, beta and decay: [T, channels], [T, values], two [T, heads]."""
        shape = self._shape
        mixed, gates, beta, rates = inputs.split(
            [shape.channels, shape.values, shape.value_heads, shape.value_heads], dim=1
        )
        decay = weights.rates * functional.softplus(widen(rates) + weights.decay_bias)
        return mixed, gates, widen(beta).sigmoid(), decay

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all value heads, from what the convolution returns."""
        shape = self._shape
        keys = shape.key_heads * shape.key_dim
        q, k, v = widen(mixed).split([keys, keys, shape.values], dim=1)
        q, k = (_unit(each.unflatten(1, (shape.key_heads, -1))) for each in (q, k))
        of_each = shape.value_heads // shape.key_heads
        q, k = (each.repeat_interleave(of_each, dim=1) for each in (q * shape.key_dim**-0.5, k))
        return q, k, v.view(len(v), shape.value_heads, -1)

    def _normed(self, out: Tensor, gates: Tensor, weight: Tensor) -> Tensor:
        """The output, normalised by head and gated: [T, values]."""
        heads = widen(out).unflatten(1, (self._shape.value_heads, -1))
        normed = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + self._norm_eps)
        gated: Tensor = (weight * normed).flatten(1) * functional.silu(widen(gates))
        return gated.to(out.dtype)


class TorchRecurrence(GatedDeltaLayer):
    def plan(self, plan: StatePlan) -> None:
        self._loaded, self._computed = torch.from_numpy(plan.loaded), plan.states - len(plan.loaded)
        self._stored, self._stored_slots = torch.from_numpy(plan.stored), torch.from_numpy(plan.stored_slots)
        self._batches = [
            (torch.from_numpy(batch.rows), Convolution(batch, self._shape.taps), GatedDeltaRule(batch))
            for batch in plan.batches
        ]

    def mix(self, layer: int, weights: RecurrentWeights, inputs: Tensor) -> Tensor:
        if self._shape.convolved:
            return self._convolve(layer, weights.convolution, inputs)
        mixed, gates, beta, decay = self._split(weights, inputs)
        states, tails = (self._of_forward(pool[layer]) for pool in (self._pool.states, self._pool.tails))
        out = torch.empty(gates.shape, dtype=decay.dtype)
        for rows, convolve, rule in self._batches:
            q, k, v = self._heads(convolve(mixed[rows], weights.convolution, tails))
            out[rows] = rule(Tokens(q, k, v, decay[rows], beta[rows]), states).flatten(1)
        for pool, known in ((self._pool.states, states), (self._pool.tails, tails)):
            pool[layer, self._stored_slots] = known[self._stored]
        return self._normed(out.to(inputs.dtype), gates, weights.norm)

    def _convolve(self, layer: int, weight: Tensor, inputs: Tensor) -> Tensor:
        before, behind, x = inputs.chunk(3, dim=1)
        tails, mixed = self._of_forward(self._pool.tails[layer]), before * x
        out = torch.empty_like(mixed)
        for rows, convolve, _ in self._batches:
            out[rows] = convolve(mixed[rows], weight, tails, activated=False)
        self._pool.tails[layer, self._stored_slots] = tails[self._stored]
        return behind * out

    def _of_forward(self, pool: Tensor) -> Tensor:
        """The states of a forward, those that it computes still empty."""
        return torch.cat((pool[self._loaded], pool.new_empty((self._computed, *pool.shape[1:]))))


class StepRecurrence(GatedDeltaLayer):
    """`Recurrence` of a step, in operations whose shapes depend on no data; each row has a slot of the pool."""

    def plan_steps(self, slots: Tensor) -> None:
        """Take the slots of the rows: int64 [R], all different but `PADDING_SLOT`."""
        self._slots = slots

    def mix(self, layer: int, weights: RecurrentWeights, inputs: Tensor) -> Tensor:
        if self._shape.convolved:
            before, behind, x = inputs.chunk(3, dim=1)
            return behind * self._convolved(layer, weights.convolution, before * x)
        mixed, gates, beta, decay = self._split(weights, inputs)
        q, k, v = self._heads(self._convolved(layer, weights.convolution, mixed))
        state = self._pool.states[layer].index_select(0, self._slots) * decay.exp()[..., None, None]
        correction = (v - (k[..., None, :] @ state)[..., 0, :]) * beta[..., None]
        state += k[..., None] * correction[..., None, :]
        self._pool.states[layer].index_copy_(0, self._slots, state)
        out = (q[..., None, :] @ state).flatten(1)
        return self._normed(out.to(inputs.dtype), gates, weights.norm)

    def _convolved(self, layer: int, weight: Tensor, x: Tensor) -> Tensor:
        """The convolution of each row behind its tail, which then ends with the row."""
        tails = self._pool.tails[layer]
        seen = torch.cat((tails.index_select(0, self._slots), x[:, None]), dim=1)
        tails.index_copy_(0, self._slots, seen[:, 1:])
        out = (widen(seen) * widen(weight)).sum(1)
        return (out if self._shape.convolved else functional.silu(out)).to(x.dtype)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + NORM_OF_KEYS_EPS)


class Convolution:
    """The convolution over the spans of a batch, whose tables serve all layers.

    A span's first tokens read the *tail* of the state that it begins with: the last `taps` - 1 tokens before it.
    """

    def __init__(self, batch: SpanBatch, taps: int) -> None:
        self._before = taps - 1
        rows, firsts = len(batch.rows), batch.cu_seqlens[:-1]
        # A table's entries count the rows, then the tails of those states that spans begin with.
        used, of_span = np.unique(batch.starts, return_inverse=True)
        tails = rows + of_span * self._before
        self._starts = torch.from_numpy(used)
        lengths = np.diff(batch.cu_seqlens)
        places = np.arange(rows) - firsts.repeat(lengths)
        self._sources = []
        for back in range(taps - 1, 0, -1):
            of_tail = tails.repeat(lengths) + self._before - back + places
            self._sources.append(torch.from_numpy(np.where(places >= back, np.arange(rows) - back, of_tail)))
        self._ends = torch.from_numpy(batch.ends)
        if len(batch.ends):
            places = lengths[:, None] - np.arange(self._before, 0, -1)
            kept = np.where(places >= 0, firsts[:, None] + places, tails[:, None] + self._before + places)
            self._kept = torch.from_numpy(kept)

    def __call__(self, x: Tensor, weight: Tensor, tails: Tensor, activated: bool = True) -> Tensor:
        """Convolve x, [T, channels], by `weight`, [taps, channels], with silu behind it if `activated`.

        `tails`, [states, taps - 1, channels], holds those with which spans begin, and gets those they leave.
        """
        seen = torch.cat((x, tails[self._starts].flatten(0, 1)))
        if len(self._ends):
            tails[self._ends] = seen[self._kept]
        wide = widen(weight)
        out = widen(x) * wide[-1]
        for tap, source in zip(wide, self._sources, strict=False):
            out += seen[source] * tap
        return (functional.silu(out) if activated else out).to(x.dtype)
