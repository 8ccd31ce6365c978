"""Bytes that a forward's activations take, by arithmetic."""

from hiscore.models.config import Architecture
from hiscore.recurrence.metadata import CHUNK

RULE_NUMBERS = 16
"""Numbers in float32 for each channel of a recurrent layer's row, padding included: 12 to 15 were measured."""


def activation_bytes(a: Architecture, rows: int, number_bytes: int, by_kernels: bool = False) -> int:
    """The most bytes alive at once in the loop over layers, in attention or the MLP, for so many rows.

    `by_kernels` says that recurrent layers are computed by kernels.
    """
    attended = a.heads * a.head_dim
    attention = attended + 2 * a.kv_heads * a.head_dim + attended + a.hidden_size
    mlp = 3 * a.intermediate_size + a.hidden_size  # gate, up and their product; the last projection
    if a.experts is not None:
        # Each row once for each of its experts: its input, as above, and its weighted output.
        mlp = max(mlp, a.experts.routing.per_token * (3 * a.experts.width + 3 * a.hidden_size))
        mlp = max(mlp, 3 * (a.experts.shared_width or 0) + 3 * a.hidden_size)
    if a.family.parallel_mlp:
        mlp += attended
    mixer = attention * number_bytes
    if a.recurrence is not None:
        r, of_rule = a.recurrence, RULE_NUMBERS * 4 * a.recurrence.channels
        if by_kernels:
            # Convolved inputs; output and corrections, what they subtract and what reads them; decay.
            of_head = (2 * r.value_dim + r.key_dim + CHUNK) * number_bytes + 4
            of_rule = r.channels * number_bytes + r.value_heads * of_head
        mixer = max(mixer, r.inputs * number_bytes + of_rule)
    residual = a.hidden_size * max(4, number_bytes)  # in float32 at least
    norm = a.hidden_size * number_bytes
    own = a.layers * a.own_input * (number_bytes + 4)
    return rows * (residual + norm + own + max(mixer, mlp * number_bytes))


def output_bytes(a: Architecture, rows: int, number_bytes: int) -> int:
    """Bytes that a forward leaves for its scored rows: residual stream, attention's output of the last layer."""
    mixed = a.heads * a.head_dim if a.recurrence is None else max(a.heads * a.head_dim, a.recurrence.values)
    return rows * (a.hidden_size * max(4, number_bytes) + mixed * number_bytes)


def head_bytes(a: Architecture, rows: int) -> int:
    """Bytes of the normaliser over the vocabulary: float32 logits of rows in one slice, three times over."""
    return 0 if a.is_classifier else 3 * 4 * rows * a.vocab_size
