"""float8 in Triton's interpreter."""

from typing import Any

import numpy as np
import pytest
import torch

from hiscore.layers.fp8 import FP8
from tests.support.layers import DEVICE


def round_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter (3.6) drops carries and NaN when it rounds to float8; a GPU does as torch does."""
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    def convert(values: np.ndarray, source: Any, target: Any, rounding: Any) -> np.ndarray:
        if (source.name, target.name) == ("fp8e4nv", "fp16"):  # of a product's operands, which fp16 holds
            return torch.from_numpy(values).view(FP8).half().view(torch.int16).numpy().view(np.uint16)
        assert (source.name, target.name) == ("fp32", "fp8e4nv")
        return torch.from_numpy(values).to(FP8).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)
