"""Ways to draw a token from each row of a step's logits: greedy in PyTorch, our kernels, FlashInfer's."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.interface.sampling_batch import Penalties, SamplingBatch
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.worker.sampler import greedy, sample_batch
from hiscore.decoding.worker.sampling_options import padded_options
from hiscore.decoding.worker.step_runner import COUNTERS, feed, new_input_ids
from hiscore.decoding.worker.triton_sampler import Feeding, draw
from perf.decoding.arms import device

Run = Callable[[], Tensor]

TEMPERATURE = {"temperature": 0.8}
MIXES: dict[str, Mapping[str, Any]] = {
    "greedy": {},
    "temperature": TEMPERATURE,
    "top_k": {**TEMPERATURE, "top_k": 50},
    "top_p": {**TEMPERATURE, "top_p": 0.9},
    "min_p": {**TEMPERATURE, "min_p": 0.05},
    "all": {**TEMPERATURE, "top_k": 50, "top_p": 0.9, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}
"""Request parameters by name."""


def peaked(rows: int, vocabulary: int) -> Tensor:
    """Logits as a trained model's: some 50 tokens of a row hold most of it. Rounded as a product in bfloat16."""
    torch.manual_seed(0)
    logits = torch.randn(rows, vocabulary, device=device()) * 2
    likely = torch.randint(vocabulary, (rows, 50), device=device())
    logits.scatter_(1, likely, 14 + 2 * torch.randn(rows, 50, device=device()))
    return logits.bfloat16().float()


def flat(rows: int, vocabulary: int) -> Tensor:
    """Logits of random weights: top-p keeps tens of thousands."""
    torch.manual_seed(0)
    return (torch.randn(rows, vocabulary, device=device()) * 0.64).bfloat16().float()


def sampling_of(rows: int, mix: Mapping[str, Any]) -> SamplingBatch:
    """Sampling of each row. Penalties change no logit: they are applied to the same ones again."""
    penalties = None
    if "presence_penalty" in mix:
        none = np.zeros(rows, np.float32)
        penalties = Penalties(np.arange(rows), none + 1, none, none)
    return SamplingBatch(
        np.full(rows, mix.get("temperature", 0), np.float32),
        np.full(rows, mix.get("top_k", 0), np.int32),
        np.full(rows, mix.get("top_p", 1), np.float32),
        np.random.default_rng(0).random(rows),
        np.full(rows, mix.get("min_p", 0), np.float32),
        penalties=penalties,
    )


def _fed(logits: Tensor) -> Feeding:
    rows, vocabulary = logits.shape
    counter = torch.zeros(1, dtype=torch.int64, device=device())
    cache = SimpleNamespace(hits=counter, misses=counter, mass=counter.double().repeat(2))
    return Feeding(
        torch.zeros(COUNTERS + rows, dtype=torch.int64, device=device()),
        new_input_ids(rows, device()),
        torch.zeros((rows, vocabulary), dtype=torch.int32, device=device()),
        cast(KVCache, cache),
    )


def ours(logits: Tensor, mix: Mapping[str, Any]) -> Run:
    """Launch what a step's graph does behind its logits."""
    rows, feeding = len(logits), _fed(logits)
    options = padded_options(rows, np.arange(rows, dtype=np.int32), sampling_of(rows, mix))
    on_device = torch.from_numpy(options).to(device())
    return lambda: draw(logits, on_device, feeding)


def by_torch(logits: Tensor) -> Run:
    """Greedy tokens in PyTorch, fed and read back: an argmax and some 15 small kernels."""
    feeding, rows = _fed(logits), torch.arange(len(logits), device=device())
    return lambda: feed(greedy(logits), logits, rows, feeding.input_ids, feeding.cache)


def check(logits: Tensor, name: str) -> None:
    """Compare our tokens with those of a sort in PyTorch, a row at a time.

    Raises:
        ArithmeticError: More than one row differs; a draw on the boundary of two tokens may.
    """
    sampling = sampling_of(len(logits), MIXES[name])
    expected = [_sorted(logits[row : row + 1], sampling.draw_of(row)) for row in range(len(logits))]
    found = ours(logits.clone(), MIXES[name])()[COUNTERS:].tolist()
    differing = sum(one != other for one, other in zip(expected, found, strict=True))
    if differing > 1:
        raise ArithmeticError(f"{differing} of {len(logits)} tokens are not those of a sort")


def _sorted(logits: Tensor, sampling: SamplingBatch) -> int:
    return int(sample_batch(logits.cpu(), sampling))


def flashinfer(logits: Tensor, name: str) -> dict[str, Run]:
    """FlashInfer's kernels for a mix without its penalties. They draw, and feed nobody."""
    from flashinfer import sampling

    given = MIXES[name]
    state = torch.zeros(1, dtype=torch.int64, device="cuda")
    seeds = {"seed": state, "offset": state}
    heat = torch.full((len(logits),), given.get("temperature", 1.0), device="cuda")

    def shares() -> Tensor:
        return cast(Tensor, sampling.softmax(logits, heat, enable_pdl=True))

    def hot() -> Tensor:
        return logits / heat[:, None]

    k, p = given.get("top_k"), given.get("top_p")
    of_mix: dict[str, dict[str, Run]] = {
        "temperature": {
            "from probabilities": lambda: sampling.sampling_from_probs(shares(), **seeds),
            "from logits": lambda: sampling.sampling_from_logits(hot(), **seeds),
        },
        "top_k": {"rejection": lambda: sampling.top_k_sampling_from_probs(shares(), k, **seeds)},
        "top_p": {"rejection": lambda: sampling.top_p_sampling_from_probs(shares(), p, **seeds)},
        "min_p": {"rejection": lambda: sampling.min_p_sampling_from_probs(shares(), given["min_p"], **seeds)},
        "all": {
            order: lambda order=order: sampling.top_k_top_p_sampling_from_logits(  # type: ignore[misc]
                hot(), k, p, filter_apply_order=order, **seeds
            )
            for order in ("top_k_first", "joint")
        },
    }
    return of_mix.get(name, {})
