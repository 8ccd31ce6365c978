"""The plan of a prefill by kernels, by its definition."""

from hypothesis import given
from hypothesis import strategies as st

from hiscore.models.deepseek.prefill_tiles import ROWS, NewRows, plan_prefill

TOP_K = 6


@st.composite
def sequences(draw: st.DrawFn) -> list[NewRows]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 60))
        found.append(NewRows(draw(st.integers(1, length)), length, draw(st.booleans())))
    return found


@given(sequences(), st.integers(1, 2_000))
def test_every_row_has_its_list_and_every_row_that_selects_one_tile(
    rows: list[NewRows], max_scores: int
) -> None:
    plan = plan_prefill(rows, TOP_K, max_scores)
    # Each row by its sequence's first slot, its tokens, and whether it selects.
    expected, slot = [], 0
    for each in rows:
        seen = range(each.length - each.rows + 1, each.length + 1)
        expected += [(slot, length, length > TOP_K and not each.full) for length in seen]
        slot += each.length
    selecting = [at for at, (_, _, selects) in enumerate(expected) if selects]
    assert plan.seen.tolist() == [expected[at][1] for at in selecting]
    assert plan.starts.tolist() == [expected[at][0] for at in selecting]
    for at, (start, length, selects) in enumerate(expected):
        list_ = (selecting.index(at) * TOP_K, TOP_K) if selects else (len(selecting) * TOP_K + start, length)
        assert (plan.begins[at], plan.counts[at]) == list_
    covered = []
    for part in plan.passes:
        assert part.rows.start == len(covered)
        for first, count, length, start, place in part.tiles.tolist():
            assert 1 <= count <= ROWS
            assert place == len(covered) - part.rows.start
            assert [expected[first + row][:2] for row in range(count)] == [
                (start, length + row) for row in range(count)
            ]
            covered += range(first, first + count)
        assert part.rows.stop == len(covered)
        assert part.width == max(plan.seen[part.rows])
        assert len(part.tiles) == 1 or (part.rows.stop - part.rows.start) * part.width <= max_scores
    assert covered == selecting


def test_control_a_smaller_bound_makes_more_passes() -> None:
    rows = [NewRows(100, 200, full=False)]
    assert len(plan_prefill(rows, TOP_K, 200 * 100).passes) == 1
    assert len(plan_prefill(rows, TOP_K, 200 * 50).passes) == 3
