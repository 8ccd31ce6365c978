"""Biases, penalties and log-probabilities against a plain float64 reference, for rows that share a batch."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.interface.logprobs import LEAST, unpack
from hiscore.decoding.interface.sampling_batch import Masks, SamplingBatch
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import StopChecker
from hiscore.decoding.scheduling.batch import make_sampling_batch
from hiscore.decoding.sequence import DecodeCall, Holdings, Sequence
from hiscore.decoding.worker.token_sampler import Sampled, TokenSampler, apply_masks, launch_for
from hiscore.errors import RequestError
from tests.support.limited_memory import LimitedMemory

VOCABULARY = 40
EOS = 3


@dataclass
class Row:
    prompt: list[int]
    params: SamplingParams
    seq_index: int
    output: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        checker = StopChecker(self.params, frozenset({EOS}))
        call = DecodeCall(np.array(self.prompt, np.int32), self.params, math.inf)
        self.sequence = Sequence(call, None, checker, Holdings(seq_index=self.seq_index))

    def adjusted(self, logits: Tensor) -> Tensor:
        """vLLM's definitions, one token after the other."""
        params, seen = self.params, Counter(self.output)
        out = logits.double().clone()
        for token in range(VOCABULARY):
            out[token] += dict(params.logit_bias).get(token, 0.0)
            if len(self.output) < params.min_tokens and token in self.sequence.stop_checker.end_ids:
                out[token] = -math.inf
            if token in seen or token in self.prompt:
                repetition = params.repetition_penalty
                out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
            out[token] -= params.frequency_penalty * seen[token] + params.presence_penalty * (token in seen)
        return out


def batch_of(rows: list[Row]) -> SamplingBatch:
    positions = np.array([len(row.prompt) + len(row.output) for row in rows], np.int32)
    return make_sampling_batch([row.sequence for row in rows], positions)


def sample(rows: list[Row], logits: Tensor) -> Sampled:
    """By a sampler that has counted nothing before."""
    indices = np.array([row.seq_index for row in rows], np.int32)
    return TokenSampler(len(rows), torch.device("cpu")).sample(logits.clone(), indices, batch_of(rows))


def some_rows() -> list[Row]:
    return [
        Row([1, 2, 2], SamplingParams(), 4),
        Row([5, 6], SamplingParams(repetition_penalty=1.7), 0),
        Row([7], SamplingParams(frequency_penalty=1.5, presence_penalty=-0.5, min_tokens=4), 2),
        Row([8, 9], SamplingParams(presence_penalty=2.0, logit_bias=((11, 6.0), (12, -100.0))), 3),
        Row([10], SamplingParams(repetition_penalty=0.5, frequency_penalty=-2.0, logprobs=3), 1),
    ]


def random_logits(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(5, VOCABULARY, generator=generator) * 2


def test_greedy_rows_follow_the_reference_step_by_step() -> None:
    rows, sampler = some_rows(), TokenSampler(5, torch.device("cpu"))
    plain = 0
    for step in range(25):
        logits = random_logits(step)
        expected = [int(row.adjusted(logits[place]).argmax()) for place, row in enumerate(rows)]
        plain += sum(int(each.argmax()) != token for each, token in zip(logits, expected, strict=True))
        indices = np.array([row.seq_index for row in rows], np.int32)
        ids, _, _ = sampler.sample(logits, indices, batch_of(rows))
        assert ids.tolist() == expected, step
        for row, token in zip(rows, expected, strict=True):
            row.output.append(token)
            row.sequence.output_ids.append(token)
            row.sequence.is_counted = row.params.has_penalty
        if step == 12:
            # Preempted and resumed elsewhere: the device counts it anew, without the index's last owner.
            rows[1].seq_index = rows[1].sequence.held.seq_index = 2
            rows[2].seq_index = rows[2].sequence.held.seq_index = 0
            rows[1].sequence.is_counted = rows[2].sequence.is_counted = False
    assert plain > 25, "the control: without penalties and biases other tokens are the largest"


def test_nothing_that_ends_a_sequence_is_drawn_before_min_tokens() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=frozenset({5, 2**31 - 1}))
    row, sampler = Row([1], params, 0), TokenSampler(1, torch.device("cpu"))
    drawn = []
    for _ in range(4):
        logits = torch.arange(VOCABULARY).float().neg()[None]
        logits[0, EOS], logits[0, 5] = 9.0, 8.0
        ids, _, _ = sampler.sample(logits, np.array([0], np.int32), batch_of([row]))
        drawn += ids.tolist()
        row.output.append(drawn[-1])
    assert drawn == [0, 0, EOS, EOS]


def test_logprobs_are_those_of_the_models_own_logits() -> None:
    params = [
        SamplingParams(logprobs=2, temperature=0.7, logit_bias=((30, 100.0),)),
        SamplingParams(),
        SamplingParams(logprobs=0, repetition_penalty=2.0),
        SamplingParams(logprobs=4),
    ]
    rows = [Row([place], each, place) for place, each in enumerate(params)]
    logits = random_logits(0)[:4]
    batch = batch_of(rows)
    truth = torch.log_softmax(logits.double(), -1)
    ids, packed, _ = sample(rows, logits)
    assert packed is not None
    reported = unpack(packed.numpy(), batch)
    assert set(reported) == {0, 2, 3}
    assert int(ids[0]) == 30
    for row, (chosen, top_ids, top_values) in reported.items():
        # Sums of 40 float32 numbers near 1: a few units of their precision, 1.2e-7.
        assert chosen == pytest.approx(float(truth[row, ids[row]]), abs=2e-6)
        best = truth[row].sort(descending=True)
        count = params[row].logprobs
        assert top_ids.tolist() == best.indices[:count].tolist()
        assert top_values == pytest.approx(best.values[:count].numpy(), abs=2e-6)
    assert unpack(packed.numpy(), batch_of(rows[1:2])) == {}


def test_a_log_probability_of_minus_infinity_is_a_number() -> None:
    rows = [Row([1], SamplingParams(logprobs=3), 0)]
    _, packed, _ = sample(rows, torch.tensor([[0.0, -math.inf]]))
    assert packed is not None
    assert unpack(packed.numpy(), batch_of(rows))[0].top_values.tolist() == [0.0, LEAST, LEAST]


def sampled_within(limit: int, rows: list[Row], logits: Tensor) -> tuple[Sampled, int]:
    """Sample with so many bytes for a tensor; also how many were refused."""
    for row in rows:
        row.sequence.is_counted = False
    indices, memory = np.array([row.seq_index for row in rows], np.int32), LimitedMemory(limit)
    sampler, batch = TokenSampler(6, torch.device("cpu")), batch_of(rows)
    logits = logits.clone()
    with memory:
        return sampler.sample(logits, indices, batch), memory.refused


ROW_BYTES = VOCABULARY * 4


def test_a_row_that_lacks_memory_fails_alone() -> None:
    """To count the tokens of its prompt takes more than any row of logits."""
    rows = [*some_rows(), Row(list(range(30)) * 20, SamplingParams(presence_penalty=1.0, logprobs=1), 5)]
    rows = [rows[place] for place in (0, 1, 5, 2, 3, 4)]
    logits = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(1))
    expected = [int(row.adjusted(each).argmax()) for row, each in zip(rows, logits, strict=True)]
    for limit, failing in ((7 * ROW_BYTES, [2]), (ROW_BYTES - 1, [1, 2, 3, 4, 5]), (10**6, [])):
        sampled, refused = sampled_within(limit, rows, logits)
        assert sorted(sampled.failures) == failing
        assert bool(refused) == bool(failing)
        assert all(isinstance(error, RequestError) for error in sampled.failures.values())
        for row in set(range(6)) - set(failing):
            assert int(sampled.ids[row]) == expected[row]


def test_rows_that_lack_memory_together_are_sampled_alone() -> None:
    params = [
        SamplingParams(temperature=0.9, top_k=5, seed=1),
        SamplingParams(temperature=1.3, seed=2, frequency_penalty=1.0),
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.8, min_p=0.01, seed=3, logprobs=2),
        SamplingParams(presence_penalty=1.0, logprobs=0),
    ]
    rows = [Row([place], each, place) for place, each in enumerate(params)]
    logits = random_logits(2)
    (ids, reported, _), refused = sampled_within(10**6, rows, logits)
    assert refused == 0
    # Room for a row of integers of 8 bytes, and for the counts of 6 sequences.
    (found, reported_alone, failures), refused = sampled_within(6 * ROW_BYTES, rows, logits)
    assert refused > 0
    assert failures == {}
    assert torch.equal(found, ids)
    assert reported is not None
    assert reported_alone is not None
    assert torch.equal(reported_alone, reported)


def test_on_a_lost_device_no_row_is_tried_alone() -> None:
    """What its frames hold must not be freed."""
    tried: list[list[int]] = []

    def launch(rows: list[int]) -> None:
        tried.append(rows)
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access") as raised:
        launch_for(range(3), launch, {})
    assert tried == [[0, 1, 2]]
    assert raised.value.__traceback__ is not None


def test_only_the_repetition_penalty_looks_at_the_prompt() -> None:
    """Token 20 leads by less than any penalty, and is in the prompt alone."""
    logits = torch.zeros(1, VOCABULARY).index_fill_(1, torch.tensor([20]), 1.0)

    def first(**penalty: float) -> int:
        return int(sample([Row([20, 20], SamplingParams(**penalty), 0)], logits - 2).ids[0])  # type: ignore[arg-type]

    assert first(presence_penalty=2.0) == first(frequency_penalty=2.0) == 20
    assert first(repetition_penalty=3.0) == 0


def test_a_mask_allows_nothing_beyond_its_bits() -> None:
    logits = torch.zeros(2, 70).index_fill_(1, torch.tensor([66]), 9.0)
    apply_masks(logits, Masks(np.array([1]), (np.array([0b100, -(2**31)], np.int32),)))
    assert torch.isfinite(logits[1]).nonzero()[:, 0].tolist() == [2, 63]
    assert int(logits[0].argmax()) == 66


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2), np.int32), np.ones(2, np.float64), np.array(1, np.int32), "no mask"]
)
def test_a_mask_that_is_none_fails_its_own_row(bad: Any) -> None:
    masks = np.array([0b1000, 0], np.int32), bad, np.array([0b10000, 0], np.int32)
    rows = [Row([place], SamplingParams(), place) for place in range(4)]
    for row, mask in zip(rows[1:], masks, strict=True):
        row.sequence.mask = mask
    logits = torch.zeros(4, VOCABULARY).index_fill_(1, torch.tensor([20]), 1.0)
    sampled = sample(rows, logits)
    assert list(sampled.failures) == [2]
    assert [int(sampled.ids[row]) for row in (0, 1, 3)] == [20, 3, 4]
