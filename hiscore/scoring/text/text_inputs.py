"""A request in text, from the tensors and parameters that Triton has."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore.edge.triton_io import required_tensor, strings, tensor
from hiscore.errors import RequestError
from hiscore.parameters import one_row
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.text.encoding_plan import TextRequest

TEXTS = ("query", "items", "labels")


def read_text(request: Any, options: ScoreOptions) -> TextRequest:
    """Read a request in text; all that it holds is copied.

    Raises:
        RequestError: An input is missing, has another shape or dtype, or is not UTF-8.
    """
    query, items = (one_row(name, required_tensor(request, name), np.object_) for name in ("query", "items"))
    if len(query) != 1:
        raise RequestError(f"'query' must be one string, not {len(query)}")
    labels, label_ids = _row(request, "labels", np.object_), _row(request, "label_token_ids", np.int32)
    return TextRequest(
        query=strings(query, "query")[0],
        items=strings(items, "items"),
        labels=None if labels is None else strings(labels, "labels"),
        label_token_ids=None if label_ids is None else label_ids.copy(),
        label_counts=options.label_counts,
        item_first=options.item_first,
        text_bytes=sum(sum(map(len, texts)) for texts in (query, items, labels) if texts is not None),
    )


def _row(request: Any, name: str, dtype: npt.DTypeLike) -> Any:
    values = tensor(request, name)
    return None if values is None else one_row(name, values, dtype)
