"""The wire layout of a prompt: query, then a delimiter and an item for each item, then one last delimiter.

Delimiters only mark where items begin and end. Their ids are never read, and they are dropped before anything is
computed. Their positions are sent along, so nothing ever searches for them.
"""

from typing import NoReturn

import numpy as np

from hiscore.arrays import Int32
from hiscore.errors import RequestError
from hiscore.scoring.requests.request import MultiItemPrompt

# Never read; 0 is in every vocabulary.
DELIMITER_ID = 0
# Where sizes come before the ids of labels: in no vocabulary.
SIZES_FOLLOW = int(np.iinfo(np.int32).min)


def lay_out(prompt: MultiItemPrompt) -> tuple[Int32, Int32]:
    """Insert delimiters: ``input_ids``, int32 [tokens + items + 1], and their indices, int32 [items + 1]."""
    lengths = np.concatenate(([prompt.query_length], prompt.item_lengths))
    delimiters = np.cumsum(lengths) + np.arange(len(lengths))
    input_ids = np.full(len(prompt.tokens) + len(delimiters), DELIMITER_ID, np.int32)
    is_token = np.ones(len(input_ids), bool)
    is_token[delimiters] = False
    input_ids[is_token] = prompt.tokens
    return input_ids, delimiters.astype(np.int32)


def unpack(input_ids: Int32, delimiter_indices: Int32) -> MultiItemPrompt:
    """Check a layout, as `lay_out` makes it, and drop its delimiters; the prompt's arrays are copies."""
    delimiters = delimiter_indices.astype(np.int64)
    item_lengths = delimiters[1:] - delimiters[:-1] - 1
    is_sound = len(delimiters) and delimiters[0] >= 0 and delimiters[-1] == len(input_ids) - 1
    if not is_sound or item_lengths.min(initial=0) < 0:
        _refuse_layout(input_ids, delimiter_indices)
    is_token = np.ones(len(input_ids), bool)
    is_token[delimiters] = False
    return MultiItemPrompt(input_ids[is_token], int(delimiters[0]), item_lengths)


def lay_out_labels(ids: Int32, sizes: Int32) -> Int32:
    """Put `SIZES_FOLLOW`, the shape of sizes, int32 [1 or 2, labels], and the sizes before the ids of labels."""
    if not sizes.size:
        return ids
    return np.concatenate((np.array([SIZES_FOLLOW, *sizes.shape], np.int32), sizes.ravel(), ids))


def unpack_labels(ids: Int32) -> tuple[Int32, list[list[int]]]:
    """Take apart what `lay_out_labels` made, into ids and the rows of sizes; of plain ids there are none."""
    if not len(ids) or ids[0] != SIZES_FOLLOW:
        return ids, []
    rows, labels = ids[1:3].tolist() if len(ids) > 2 else (0, 0)
    sizes = ids[3 : 3 + rows * labels]
    if not (0 < rows <= 2 and len(sizes) == rows * labels > 0) or sizes.min() < 1:
        raise RequestError(f"'label_token_ids' begins with {SIZES_FOLLOW}, and no sizes of labels follow")
    return ids[3 + len(sizes) :], sizes.reshape(rows, labels).tolist()


def _refuse_layout(input_ids: Int32, delimiter_indices: Int32) -> NoReturn:
    if len(delimiter_indices) == 0:
        raise RequestError("'delimiter_indices' is empty: one delimiter ends even a call without items")
    low, high = int(delimiter_indices.min()), int(delimiter_indices.max())
    if low < 0 or high >= len(input_ids):
        wrong = low if low < 0 else high
        raise RequestError(
            f"'delimiter_indices' holds {wrong}: out of range for 'input_ids' of length {len(input_ids)}"
        )
    steps = np.diff(delimiter_indices.astype(np.int64))
    if (steps <= 0).any():
        at = int((steps <= 0).argmax())
        raise RequestError(
            f"'delimiter_indices' must ascend strictly: {int(delimiter_indices[at])} is followed by "
            f"{int(delimiter_indices[at + 1])} at index {at + 1}"
        )
    raise RequestError(
        f"'delimiter_indices' must end the sequence: the last is {int(delimiter_indices[-1])}, "
        f"'input_ids' ends at {len(input_ids) - 1}"
    )
