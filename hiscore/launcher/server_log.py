"""What a server's log says about why it stopped."""

import re
from pathlib import Path

# Triton begins a line with the level, the date and the time: "E1121 07:58:01.123456 ...".
LOGGED = re.compile(r"([EWIF])\d{4} \d\d:\d\d:\d\d")
MOST_LINES = 15
# Logged as errors at every start without a GPU.
HARMLESS = ("CudaDriverHelper has not been initialized", "unable to create stream for")


def failure_reason(log_path: Path | None) -> str:
    """The tail of an error message: the error lines of the log and where to read on."""
    if log_path is None:
        return "; the log above says why"
    lines = error_lines(log_path.read_text(errors="replace"))
    return "".join(f"\n  {line}" for line in lines) + f"\n(whole log: {log_path})"


def error_lines(log: str) -> list[str]:
    """The last error messages of a log, each with the lines that continue it."""
    kept: list[str] = []
    level = ""
    for line in log.splitlines():
        found = LOGGED.match(line)
        level = found.group(1) if found else level
        if level in ("E", "F") and line.strip() and not any(text in line for text in HARMLESS):
            kept.append(line)
    return kept[-MOST_LINES:] or log.splitlines()[-MOST_LINES:]
