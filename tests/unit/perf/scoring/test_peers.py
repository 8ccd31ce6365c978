"""All arms of a round get the same calls, and no two rounds do."""

from perf.scoring import peers


def test_every_arm_gets_a_rounds_calls_and_no_round_repeats_them() -> None:
    draws = peers.Draws(peers.CPU, 500, 2)
    rounds = {name: [draws.following(name) for _ in range(3)] for name in ("a", "b")}
    assert rounds["a"] == rounds["b"]
    queries = [tuple(call.query) for of in [draws.batches(0), *rounds["a"]] for batch in of for call in batch]
    assert len(set(queries)) == len(queries) == 4 * 2 * peers.CPU.windows
