"""Which forwards attend over rows on CUDA, with FlashInfer's kernels in float64 and graphs that are called."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.attention.base import AttentionShape
from hiscore.attention.metadata import Forward
from hiscore.decoding.interface.worker import PrefillChunk
from hiscore.decoding.models.gqa import pack_chunks
from hiscore.models.decoder import Decoder
from hiscore.prefill.cuda_runner import CudaRunner
from hiscore.prefill.runner import TorchRunner
from tests.support.cuda_runner import launch_on_cpu
from tests.support.dense import dense_attention
from tests.support.tiny_models import VOCABULARY, make

PAGE, SLOTS, MIN_ROWS, MAX_ROWS = 16, 640, 192, 256
# float32's own rounding through the layers: values are around 1, and sums have at most some 300 terms.
TOLERANCE = 1e-4


class OverRows:
    """`FlashInferRows` in float64."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self.planned: list[tuple[int, int]] = []
        self.lost = 0

    def plan(self, tokens: int, rows: int) -> None:
        self.planned.append((tokens, rows))

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        tokens, rows = self.planned[-1]
        heads = qkv.unflatten(1, (-1, self.shape.head_dim))
        out = torch.full((len(qkv), self.shape.heads * self.shape.head_dim), float("nan"))
        for begin, end in ((0, tokens - self.lost), (tokens - self.lost, rows)):
            out[begin:end] = causal(heads[begin:end], self.shape)
        return out


class OverPages:
    """`FlashInferAttention` in float64."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape, self.rows = shape, OverRows(shape)
        self.planned: list[Forward | int] = []

    def over_rows(self, rows: int) -> OverRows | None:
        return self.rows if rows >= MIN_ROWS else None

    def plan_rows(self, rows: int) -> None:
        self.planned.append(rows)

    def plan(self, forward: Forward) -> None:
        self.planned.append(forward)

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        out = torch.zeros((len(qkv), self.shape.heads * self.shape.head_dim))
        planned = self.planned[-1]
        if isinstance(planned, Forward):
            rows = qkv[: len(planned.input_ids)].unflatten(1, (-1, self.shape.head_dim))
            out[: len(rows)] = dense_attention(planned, self.shape, None, rows, pool.nan_to_num()).float()
        return out


def causal(heads: Tensor, shape: AttentionShape) -> Tensor:
    """Of the rows of one sequence, [T, heads head_dim]."""
    q, k, v = heads.double().split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    k, v = (each.repeat_interleave(shape.heads // shape.kv_heads, 1) for each in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q, k) * shape.scale
    hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).flatten(1).float()


def part(first_page: int, start: int, end: int) -> PrefillChunk:
    """Of a prompt in pages that follow each other."""
    ids = np.random.default_rng(first_page).integers(0, VOCABULARY, MAX_ROWS).astype(np.int32)[start:end]
    table = first_page + np.arange(-(-end // PAGE), dtype=np.int32)
    return PrefillChunk(0, ids, start, table, np.empty(0, np.int32), is_last=True)


@pytest.fixture
def decoder(tmp_path: Path) -> Decoder:
    return Decoder(make("llama", tmp_path), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("forwards", "over_rows"),
    [
        ([[part(2, 0, 130)]], [(130, 192)]),
        ([[part(2, 0, 192)]], [(192, 192)]),
        ([[part(2, 0, 100)]], []),
        ([[part(2, 0, 150), part(20, 0, 60)]], []),
        ([[part(2, 0, 144)], [part(2, 144, 250)]], [(144, 192)]),
    ],
    ids=["padded", "exact", "few rows", "company", "in parts"],
)
def test_a_whole_prompt_in_many_rows_attends_over_them(
    forwards: list[list[PrefillChunk]],
    over_rows: list[tuple[int, int]],
    decoder: Decoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: a plan that begins padding one token early."""
    launch_on_cpu(monkeypatch)
    attention = OverPages(decoder.attention_shape)
    runner = CudaRunner(decoder, SLOTS, MAX_ROWS, paged_attention=attention)  # type: ignore[arg-type]
    truth = TorchRunner(decoder, SLOTS)
    packed = [pack_chunks(chunks) for chunks in forwards]

    def last_states() -> Tensor:
        runner.pool.fill_(float("nan"))
        attention.planned.clear()
        attention.rows.planned.clear()
        return runner.forward(packed)

    wanted, found = truth.forward(packed), last_states()
    assert attention.rows.planned == over_rows
    assert [each for each in attention.planned if isinstance(each, Forward)] == packed[len(over_rows) :]
    assert (found - wanted).abs().max() < TOLERANCE
    attention.rows.lost = 1
    assert ((last_states() - wanted).abs().max() > TOLERANCE) == bool(over_rows)
