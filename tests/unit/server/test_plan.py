import pytest

from hiscore.server.plan import GIB, MemoryExceeded, MemoryLine, MemoryPlan

PLAN = MemoryPlan(
    "cuda:0",
    (
        MemoryLine("weights", 15 * GIB),
        MemoryLine("keys and values", 6 * GIB, ("MAX_CONTEXT", "QUERY_CACHE_BYTES")),
        MemoryLine("activations", GIB // 100, ("MAX_BATCH_TOKENS",)),
        MemoryLine("nothing", 0, ("OTHER",)),
    ),
)


def test_the_table_says_what_takes_how_much_and_by_which_setting() -> None:
    assert PLAN.table(24 * GIB).splitlines() == [
        "memory on cuda:0:",
        "  weights           15.00 GiB",
        "  keys and values    6.00 GiB  MAX_CONTEXT, QUERY_CACHE_BYTES",
        "  activations        10.2 MiB  MAX_BATCH_TOKENS",
        "  together          21.01 GiB",
        "  available         24.00 GiB",
    ]


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    PLAN.check(PLAN.total)
    with pytest.raises(MemoryExceeded) as refused:
        PLAN.check(PLAN.total - 1)
    assert str(refused.value) == (
        "cuda:0 has 21.01 GiB left, 21.01 GiB are needed: weights 15.00 GiB, keys and values 6.00 GiB, "
        "activations 10.2 MiB. Less is needed with a lower MAX_CONTEXT or QUERY_CACHE_BYTES or MAX_BATCH_TOKENS"
    )
