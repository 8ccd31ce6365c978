"""The gated delta rule over spans of any lengths against transformers' form of one sequence, state included."""

import numpy as np
import pytest
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule

from hiscore.recurrence.gated_delta_rule import GatedDeltaRule, Tokens
from hiscore.recurrence.metadata import SpanBatch

HEADS, KEYS, VALUES = 3, 16, 8
LENGTHS = [1, 2, 3, 64, 65, 200, 63, 128, 130, 5, 5, 5]
STARTS = [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2]
KNOWN = 3
# Sums of at most 128 products in float32, in another order; outputs and states are of the order of 1.
ROUNDING = 1e-6


def computed(starts: list[int]) -> tuple[SpanBatch, Tokens, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    edges = np.cumsum([0, *LENGTHS])
    count = int(edges[-1])
    q, k = (torch.nn.functional.normalize(torch.randn(count, HEADS, KEYS), dim=-1) for _ in "qk")
    tokens = Tokens(
        q * KEYS**-0.5,
        k,
        torch.randn(count, HEADS, VALUES),
        -torch.rand(count, HEADS),
        torch.rand(count, HEADS),
    )
    states = torch.randn(KNOWN + len(LENGTHS), HEADS, KEYS, VALUES)
    states[0] = 0
    batch = SpanBatch(np.arange(count), edges, np.array(starts), KNOWN + np.arange(len(LENGTHS)))
    return batch, tokens, states, GatedDeltaRule(batch)(tokens, states)


def largest_error(batch: SpanBatch, tokens: Tokens, states: torch.Tensor, out: torch.Tensor) -> float:
    error = 0.0
    for span, (begin, end) in enumerate(zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)):
        q, k, v, decay, beta = (each[None, begin:end] for each in tokens)
        expected, state = torch_chunk_gated_delta_rule(
            q, k, v, decay, beta, initial_state=states[[STARTS[span]]], output_final_state=True
        )
        # Transformers divides queries by the root of their dimension itself.
        expected, state = expected * KEYS**0.5, state[0]
        pairs = (out[begin:end], expected[0]), (states[KNOWN + span], state)
        error = max(error, *((one - other).abs().max().item() for one, other in pairs))
    return error


def test_spans_of_any_length_equal_transformers() -> None:
    assert largest_error(*computed(STARTS)) < ROUNDING


@pytest.mark.parametrize("span", [0, 4, 11])
def test_control_another_state_would_show(span: int) -> None:
    wrong = [(state + 1) % KNOWN if each == span else state for each, state in enumerate(STARTS)]
    assert largest_error(*computed(wrong)) > 100 * ROUNDING


def test_a_span_goes_on_from_the_state_that_it_left() -> None:
    batch, tokens, states, whole = computed([2] * len(LENGTHS))
    begin, end = batch.cu_seqlens[5:7]
    for first, last, start, left in ((begin, begin + 128, 2, 3), (begin + 128, end, 3, 4)):
        rows, edges = np.arange(last - first), np.array([0, last - first])
        part = SpanBatch(rows, edges, np.array([start]), np.array([left]))
        found = GatedDeltaRule(part)(Tokens(*(each[first:last] for each in tokens)), states)
        torch.testing.assert_close(found, whole[first:last], rtol=0, atol=ROUNDING)
