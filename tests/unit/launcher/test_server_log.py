"""What a server's log says about why it stopped."""

from hiscore.launcher.server_log import error_lines


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
