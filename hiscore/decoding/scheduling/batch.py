"""Sequences as the rows of a launch.

Draws come from a counter-based generator: the one for a token depends on its sequence's seed and its position
alone, whatever else is in the batch.
"""

import numpy as np
import numpy.typing as npt

from hiscore.arrays import Int32
from hiscore.decoding.interface.sampling_batch import History, LogitBias, Masks, Penalties, SamplingBatch
from hiscore.decoding.interface.worker import NO_PAGES, Admission, DecodeBatch, PrefillChunk
from hiscore.decoding.sequence import Sequence

FLOAT32_MAX = float(np.finfo(np.float32).max)

# The constants of SplitMix64.
GAMMA, FIRST_MULTIPLIER, SECOND_MULTIPLIER = (
    np.uint64(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def make_decode_batch(sequences: list[Sequence]) -> DecodeBatch:
    """Make the next decode step of running sequences, one row for each."""
    seq_indices = np.array([sequence.held.seq_index for sequence in sequences], np.int32)
    positions = np.array([sequence.length for sequence in sequences], np.int32)
    tokens = [sequence.forced_token for sequence in sequences]
    forced = None
    if any(token is not None for token in tokens):
        forced = np.array([-1 if token is None else token for token in tokens], np.int32)
    return DecodeBatch(seq_indices, positions, make_sampling_batch(sequences, positions + 1), forced)


def make_prefill_chunk(
    sequence: Sequence, tokens: int, windows: tuple[Int32, Int32], offloads: bool
) -> PrefillChunk:
    """Make a chunk of the next tokens of a sequence's prompt; `windows` are from `Windows.of_chunk`."""
    start, end = sequence.prefilled, sequence.prefilled + tokens
    last, params, held = tokens == sequence.prompt_left, sequence.call.params, sequence.held
    host_pages = held.host_pages if offloads else NO_PAGES
    return PrefillChunk(
        held.seq_index, sequence.call.prompt[start:end], start, held.staging_pages, host_pages, last,
        full_attention=not params.sparse, window_pages=windows[0], into_windows=windows[1],
        state_slot=held.state_slot,
        snapshots={place: slot for place, slot in held.snapshots.items() if start < place <= end},
    )  # fmt: skip


def make_admission(sequence: Sequence) -> Admission:
    """Make an admission, once a sequence's last prefill chunk or its copy into staging is launched."""
    held = sequence.held
    newest = min(sequence.sampled, sequence.num_output_tokens) - 1
    return Admission(
        held.seq_index,
        sequence.length,
        held.host_pages,
        held.device_pages,
        held.staging_pages,
        full_attention=not sequence.selects,
        first_token=sequence.output_ids[newest] if sequence.restored else None,
        window_pages=held.window_pages_of(0, len(held.host_pages)),
        is_buffer_alone=sequence.restored and held.restored_pages is not None,
        state_slot=held.state_slot,
    )


def make_sampling_batch(sequences: list[Sequence], positions: Int32) -> SamplingBatch:
    """Make the sampling parameters of R sequences and of the tokens at these positions, int32 [R]."""
    params = [sequence.call.params for sequence in sequences]
    # A temperature beyond float32 is clamped: every finite logit is equally likely long before.
    temperature = np.array([min(each.temperature, FLOAT32_MAX) for each in params], np.float32)
    uniforms = np.zeros(len(sequences))
    if temperature.any():
        uniforms = uniform(np.array([each.seed for each in params], np.int64), positions)
    return SamplingBatch(
        temperature,
        np.array([each.top_k for each in params], np.int32),
        np.array([each.top_p for each in params], np.float32),
        uniforms,
        np.array([each.min_p for each in params], np.float32),
        _bias(sequences, positions),
        _penalties(sequences),
        np.array([each.logprobs for each in params], np.int32),
        _masks(sequences, positions),
    )


def _masks(sequences: list[Sequence], positions: Int32) -> Masks | None:
    masked = [
        (row, sequence.mask)
        for row, (sequence, position) in enumerate(zip(sequences, positions.tolist(), strict=True))
        if sequence.mask is not None and not sequence.replays(position)
    ]
    if not masked:
        return None
    bits = tuple(mask for _, mask in masked)
    return Masks(np.array([row for row, _ in masked], np.int64), bits)


def _bias(sequences: list[Sequence], positions: Int32) -> LogitBias | None:
    """Return the requests' biases; until `min_tokens` are sampled, nothing that ends a sequence may be."""
    biases: list[tuple[int, int, float]] = []
    for row, (sequence, position) in enumerate(zip(sequences, positions.tolist(), strict=True)):
        params = sequence.call.params
        own = dict(params.logit_bias)
        if position - len(sequence.call.prompt) < params.min_tokens:
            own |= dict.fromkeys(sequence.stop_checker.end_ids, -np.inf)
        biases += [(row, token, bias) for token, bias in own.items()]
    if not biases:
        return None
    rows, ids, values = zip(*biases, strict=True)
    return LogitBias(np.array(rows, np.int64), np.array(ids, np.int64), np.array(values, np.float32))


def _penalties(sequences: list[Sequence]) -> Penalties | None:
    rows = [row for row, sequence in enumerate(sequences) if sequence.call.params.has_penalty]
    if not rows:
        return None
    histories = [
        History(row, sequences[row].call.prompt, np.array(sequences[row].output_ids, np.int32))
        for row in rows
        if not sequences[row].is_counted
    ]
    params = [sequences[row].call.params for row in rows]
    return Penalties(
        np.array(rows, np.int64),
        np.array([each.repetition_penalty for each in params], np.float32),
        np.array([each.presence_penalty for each in params], np.float32),
        np.array([each.frequency_penalty for each in params], np.float32),
        tuple(histories),
    )


def uniform(seed: npt.ArrayLike, position: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return output number `position` of SplitMix64 seeded with `seed`, as float64 in [0, 1).

    All 53 bits of the mantissa are drawn. Integer arithmetic gives the same on every platform. The arguments,
    int64, are broadcast against each other; positions are at least 0.
    """
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        z = np.asarray(seed, np.int64).astype(np.uint64)
        z = z + (np.asarray(position, np.int64).astype(np.uint64) + np.uint64(1)) * GAMMA
        z = (z ^ (z >> np.uint64(30))) * FIRST_MULTIPLIER
        z = (z ^ (z >> np.uint64(27))) * SECOND_MULTIPLIER
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)) * 2.0**-53, np.float64)
