"""Bytes of logits and sampling, by arithmetic."""

from hiscore.decoding.interface.sampling_batch import ROWS_AT_ONCE

CPU_COPIES = 16
"""Copies of the logits that sampling takes on the CPU: shares; weights, their order and their sums in 64 bits;
what each thread sorts; log-probabilities."""
PENALTY_COPIES = 6
"""Copies of the rows that penalties change at once."""
CANDIDATE_BYTES = 5 * 2**12
"""Bytes that the sampling kernels write for a row of up to 2**18 tokens."""


def sampling_bytes(rows: int, vocabulary: int, on_cuda: bool) -> int:
    """Bound the bytes of logits, and of sampling from them, for so many sequences in a step."""
    logits = 4 * rows * vocabulary
    # A row of counts for each sequence: from the start on a GPU, elsewhere once penalties are asked for.
    counts = logits
    if not on_cuda:
        return (1 + CPU_COPIES) * logits + counts
    # A step's as the model gives them, where all graphs leave them, and those of prompts that end beside it.
    alive = 3 * logits
    changed = PENALTY_COPIES * 4 * min(rows, ROWS_AT_ONCE) * vocabulary
    # Log-probabilities take a copy before anything is changed, and its powers of e. Candidates are held twice: by
    # the graphs of steps, and for prompts that end beside them.
    return alive + counts + logits + max(logits, changed) + 2 * rows * CANDIDATE_BYTES
