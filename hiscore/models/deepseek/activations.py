"""Bytes that a prefill forward with an indexer takes, by arithmetic."""

from hiscore.models.deepseek.config import DsaArchitecture

SCORE_ELEMENTS = 2**26
"""Scores that the kernels of a prefill keep at once: 256 MiB, 2,048 rows of 32,768 tokens."""


def kernel_prefill_bytes(a: DsaArchitecture, rows: int, top_k: int, number_bytes: int) -> int:
    """The most bytes alive at once in the loop over layers, where prefill is by kernels, for so many rows."""
    # Queries as projected, in the latents' space, and with their part that is rotated in float32; the output.
    projected, latents = a.nope_dim + a.rope_dim, 2 * a.latent_rank + a.row_dim
    attention = a.heads * ((projected + latents) * number_bytes + 3 * 4 * a.rope_dim)
    # The indexer's queries, of which a part is rotated in float32.
    attention += a.indexer.heads * a.indexer.head_dim * (2 * number_bytes + 2 * 4)
    attention += 2 * (a.q_rank + a.row_dim) * number_bytes
    per_token = a.experts.routing.per_token
    inner = max(per_token * a.experts.width, a.intermediate_size)
    mlp = (3 * inner + (per_token + 2) * a.hidden_size) * number_bytes
    lists = 4 * top_k
    return 4 * SCORE_ELEMENTS + rows * (2 * a.hidden_size * number_bytes + lists + max(attention, mlp))
