"""Why a server stopped, from its log."""

import re
from pathlib import Path

# Triton's lines start with level, date and time: "E1121 07:58:01.123456 ...".
LINE_START = re.compile(r"([EWIF])\d{4} \d\d:\d\d:\d\d")
MAX_LINES = 15
# Logged as errors whenever there is no GPU.
HARMLESS = ("CudaDriverHelper has not been initialized", "unable to create stream for")


def failure_reason(log_path: Path | None) -> str:
    """The end of an error message: the log's error lines, and where the whole log is."""
    if log_path is None:
        return "; the log above says why"
    lines = error_lines(log_path.read_text(errors="replace"))
    return "".join(f"\n  {line}" for line in lines) + f"\n(whole log: {log_path})"


def error_lines(log: str) -> list[str]:
    """The last error messages of a log, each with the lines that continue it."""
    kept: list[str] = []
    level = ""
    for line in log.splitlines():
        start = LINE_START.match(line)
        level = start.group(1) if start else level
        if level in ("E", "F") and line.strip() and not any(text in line for text in HARMLESS):
            kept.append(line)
    return kept[-MAX_LINES:] or log.splitlines()[-MAX_LINES:]
