"""The indexer's queries and keys in fp8: by their definition, and what they cost of the choice."""

import math

import pytest
import torch
from torch import Tensor

from hiscore.models.deepseek import fp8_keys
from hiscore.models.deepseek.indexer import IndexQuery, index_scores, select_positions

E4M3 = sorted(
    sign * value
    for exponent in range(-6, 9)
    for eighths in range(8)
    for value in (2.0**exponent * (1 + eighths / 8), 2.0**-6 * eighths / 8)
    for sign in (1, -1)
    if value <= 448
)
"""Every number of the format: 1.mmm with exponents from -6, below them 0.mmm."""


def test_rotation_is_the_hadamard_matrix_and_changes_no_dot_product() -> None:
    turned = fp8_keys.rotate(torch.eye(16, dtype=torch.float64))
    expected = [[(-1.0) ** bin(row & column).count("1") / 4 for column in range(16)] for row in range(16)]
    assert turned.tolist() == expected
    torch.manual_seed(0)
    q, k = torch.randn(2, 5, 128, dtype=torch.float64)
    # float64 sums of 128 terms.
    torch.testing.assert_close(fp8_keys.rotate(q) @ fp8_keys.rotate(k).T, q @ k.T, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_value_is_the_nearest_of_the_format_at_the_least_scale_that_holds_the_peak(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    x = torch.cat((torch.randn(6, 16) * 10.0 ** torch.arange(-3, 3)[:, None], torch.zeros(1, 16)))
    # Peaks at which the scale is a power of two itself, and just beyond one.
    x = torch.cat((x, torch.full((1, 16), 448.0), torch.full((1, 16), 450.0))).to(dtype)
    values, scales = fp8_keys.quantise(x)
    assert (values.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    for row, found, scale in zip(x.tolist(), values.float().tolist(), scales.tolist(), strict=True):
        peak = max(1e-4, *map(abs, row))
        assert scale == 2.0 ** math.ceil(math.log2(peak / 448))
        for number, kept in zip(row, found, strict=True):
            nearest = min(abs(number / scale - each) for each in E4M3)
            assert kept in E4M3
            assert abs(number / scale - kept) == nearest


def test_stored_keys_are_values_and_scales_to_the_bit() -> None:
    torch.manual_seed(0)
    values, scales = fp8_keys.quantise(torch.randn(9, 32) * torch.arange(1, 10)[:, None])
    stored = fp8_keys.pack(values, scales)
    assert (stored.dtype, stored.shape) == (torch.uint8, (9, 36))
    for found in (fp8_keys.unpack(stored), fp8_keys.views(stored)):
        assert torch.equal(found[0].view(torch.uint8), values.view(torch.uint8))
        assert torch.equal(found[1], scales)
    gathered = fp8_keys.unpack(stored[torch.tensor([[3, 1], [0, 8]])])
    assert torch.equal(gathered[1], scales[torch.tensor([[3, 1], [0, 8]])])


def choice(scores: Tensor, k: int) -> Tensor:
    """bool [rows, tokens]"""
    positions, _ = select_positions(scores, torch.full((len(scores),), scores.shape[1]), k)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, positions.long(), True)


def test_fp8_chooses_nearly_as_float32_does() -> None:
    """At DeepSeek-V3.2's widths: 64 heads of 128, half of 4,096 tokens, whose keys are of any length.

    A value with three bits behind the point is off by up to 1/16, by 2.6% in the mean square; a product, and a sum
    of products, by 3.7% of its spread. relu passes half of that noise's square and 0.34 of the spread's: 4.5%.
    Noise of a share e exchanges tokens near the threshold: of half of all tokens, with scores near a bell curve,
    e / pi of them, 1.4%. The bound is twice that.
    """
    torch.manual_seed(0)
    heads, width, tokens, rows = 64, 128, 4_096, 16
    q, gates = torch.randn(rows, heads, width), torch.randn(rows, heads)
    keys = torch.randn(tokens, width) * torch.rand(tokens, 1)
    truth = choice(index_scores(IndexQuery(q, gates), keys), tokens // 2)

    def overlap(query: IndexQuery, stored: Tensor) -> float:
        found = choice(index_scores(query, stored), tokens // 2)
        return float((truth & found).sum() / truth.sum())

    bound = 1 - 2 * 0.045 / math.pi
    values, scales = fp8_keys.quantise(fp8_keys.rotate(q))
    query, (kept, key_scales) = IndexQuery(values, gates * scales), fp8_keys.quantise(fp8_keys.rotate(keys))
    assert overlap(query, fp8_keys.pack(kept, key_scales)) > bound
    # Controls: keys without their scales, queries without theirs, and keys that were not rotated.
    assert overlap(query, fp8_keys.pack(kept, torch.ones_like(key_scales))) < bound
    assert overlap(IndexQuery(values, gates), fp8_keys.pack(kept, key_scales)) < bound
    assert overlap(query, fp8_keys.pack(*fp8_keys.quantise(keys))) < bound
