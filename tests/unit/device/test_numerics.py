import pytest
import torch

from hiscore.device.numerics import at_least_float32, soft_cap, widen


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_sums_are_in_float32_at_least(dtype: torch.dtype, wide: torch.dtype) -> None:
    assert at_least_float32(dtype) == wide
    assert widen(torch.ones(2, dtype=dtype)).dtype == wide


def test_a_soft_cap_bounds_logits_and_hardly_changes_small_ones() -> None:
    logits = torch.tensor([-1e4, -0.01, 0.0, 0.01, 1e4])
    torch.testing.assert_close(soft_cap(logits, 30.0), torch.tensor([-30.0, -0.01, 0.0, 0.01, 30.0]))
    assert soft_cap(logits, None) is logits
    assert float(soft_cap(torch.tensor(2.0), 2.0)) == pytest.approx(2 * 0.7615941559)
