"""The share of time that no kernel covers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.machine.gpu_idle import idle_share


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)), min_size=1, max_size=12), st.integers(0, 5)
)
def test_idle_share_counts_what_no_kernel_covers(drawn: list[tuple[int, int]], long_gap: int) -> None:
    intervals = [(float(begin), float(begin + length)) for begin, length in drawn]
    first, last = int(min(b for b, _ in intervals)), int(max(e for _, e in intervals))
    idle = [not any(b <= t < e for b, e in intervals) for t in range(first, last)]
    runs = "".join("_" if free else "#" for free in idle).split("#")
    found = idle_share(intervals, long_gap)
    assert found.any_gap == pytest.approx(sum(idle) / (last - first))
    assert found.long_gaps == pytest.approx(sum(len(r) for r in runs if len(r) > long_gap) / (last - first))
    assert found.span_ms == pytest.approx((last - first) / 1e3)
