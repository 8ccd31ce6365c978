"""What a server's log says about why it stopped."""

from pathlib import Path

from hiscore.launcher.server_log import MAX_LINES, error_lines, failure_reason


def test_the_error_lines_of_a_log_keep_their_continuation() -> None:
    log = (
        'I1121 07:00:00.000001 1 a.cc:1] "fine"\n'
        'E1121 07:00:00.000002 1 b.cc:2] "failed to load: RuntimeError: why"\n\nAt:\n  model.py(3)\n'
        'I1121 07:00:00.000003 1 c.cc:3] "fine again"\nE1121 07:00:00.000004 1 d.cc:4] "and this"\n'
    )
    kept = error_lines(log)
    assert [line.split("] ")[-1] for line in kept] == [
        '"failed to load: RuntimeError: why"',
        "At:",
        "  model.py(3)",
        '"and this"',
    ]


def test_the_newest_errors_are_kept_but_not_those_that_come_without_a_gpu() -> None:
    harmless = "E1121 07:00:00.000001 1 a.cc:1] CudaDriverHelper has not been initialized"
    errors = [f"{level}1121 07:00:00.000001 1 a.cc:1] {place}" for place in range(30) for level in "EF"]
    lines = [*errors, harmless, "W1121 07:00:00.000001 1 a.cc:1] a warning"]
    assert error_lines("\n".join(lines)) == errors[-MAX_LINES:]


def test_without_errors_the_end_of_the_log_must_do() -> None:
    lines = [f"I1121 07:00:00.000001 1 a.cc:1] {place}" for place in range(30)]
    assert error_lines("\n".join(lines)) == lines[-MAX_LINES:]


def test_the_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("E1121 07:00:00.000001 1 a.cc:1] broken\n")
    assert failure_reason(log) == f"\n  E1121 07:00:00.000001 1 a.cc:1] broken\n(whole log: {log})"
    assert "the log above" in failure_reason(None)
