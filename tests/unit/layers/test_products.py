import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hiscore.layers import products
from hiscore.layers.products import linear

ROWS, INNER, OUT = 5, 64, 33
# Of sums of 64 products of numbers of about 1: some roundings of a float32 of about 8.
ATOL = 1e-5


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, WEIGHT, BIAS = random(ROWS, INNER, seed=1), random(OUT, INNER, seed=2), random(OUT, seed=3)


class Calls(TorchDispatchMode):
    """The names of the operations that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [0, 1, 2, ROWS])
@pytest.mark.parametrize("bias", [None, BIAS], ids=["plain", "bias"])
def test_equals_the_product_in_float64(rows: int, bias: Tensor | None) -> None:
    x = X[:rows]
    expected = x.double() @ WEIGHT.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(linear(x, WEIGHT, bias).double(), expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t().contiguous().t(),
        lambda t: torch.stack((t, t), dim=-1)[..., 0],
        lambda t: torch.nn.functional.pad(t, (1, 2))[:, 1:-2],
        lambda t: torch.stack((t + 1, t))[1],
    ],
    ids=["transposed", "every second number", "inside wider rows", "one of two"],
)
def test_reads_views(view: Callable[[Tensor], Tensor]) -> None:
    """Experts, and the q of a joint projection, are views of larger tensors."""
    expected = X.double() @ WEIGHT.double().T
    for x, weight in ((view(X), WEIGHT), (X, view(WEIGHT))):
        torch.testing.assert_close(linear(x, weight).double(), expected, atol=ATOL, rtol=0)


def test_keeps_leading_dimensions() -> None:
    found = linear(torch.stack((X, X)), WEIGHT, BIAS)
    assert found.shape == (2, ROWS, OUT)
    for each in found:
        torch.testing.assert_close(each, linear(X, WEIGHT, BIAS), atol=ATOL, rtol=0)


def test_takes_onednn_where_pytorch_would_take_another_library() -> None:
    with torch.inference_mode(), Calls() as calls:
        linear(X, WEIGHT)
    assert calls.names == ["mkldnn._linear_pointwise.default"]


@pytest.mark.parametrize("bias", [None, BIAS], ids=["plain", "bias"])
def test_without_products_in_bfloat16_sums_are_float32_and_rounded_once(
    bias: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "onednn_has_bfloat16", lambda: False)
    x, weight = X.bfloat16(), WEIGHT.bfloat16()
    added = None if bias is None else bias.bfloat16()
    with torch.inference_mode(), Calls() as calls:
        found = linear(x, weight, added)
    assert calls.names.count("mkldnn._linear_pointwise.default") == 1
    wide = linear(x.float(), weight.float(), None if added is None else added.float())
    assert torch.equal(found, wide.bfloat16())
    assert not torch.equal(found.float(), wide)


MANY_NUMBERS_OF_ROWS = """
import os, sys
os.environ |= dict(pair.split("=") for pair in sys.argv[1:])
import psutil, torch
from hiscore.layers.products import linear
weight, sizes = torch.randn(512, 512), []
with torch.inference_mode():
    for rows in range(2, 502):
        linear(torch.empty(rows, 512), weight)
        if rows in (101, 501):
            sizes.append(psutil.Process().memory_info().rss)
print((sizes[1] - sizes[0]) >> 20)
"""


def grown_mib(*environment: str) -> int:
    """MiB by which a process grows between its first hundred numbers of rows and the first five hundred."""
    command = [sys.executable, "-c", MANY_NUMBERS_OF_ROWS, *environment]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.exhaustive
def test_code_for_old_numbers_of_rows_is_not_kept() -> None:
    """Otherwise a server's memory grows with each new length of a call."""
    names = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
    unlimited = grown_mib(*(f"{name}=1024" for name in names))
    # Some 40 MiB of the growth are something else.
    if unlimited < 128:
        pytest.skip("this CPU's products need little code of their own")
    assert grown_mib() < unlimited / 2


def test_float64_has_the_precision_of_float64() -> None:
    """OneDNN has no products of float64."""
    expected = X.double() @ WEIGHT.double().T
    torch.testing.assert_close(linear(X.double(), WEIGHT.double()), expected, atol=1e-13, rtol=0)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(linear(X, WEIGHT).double(), expected, atol=1e-13, rtol=0)
