"""List which numbers of a run moved beyond their noise since an earlier run on the same kind of machine.

usage: python -m perf.compare OLD.json NEW.json [--noise SHARE]

Reads forward.json, serving.json, score_load.json, decode_serving.json, decode-*.json, ablations.json,
text_cost.json and two_gpus.json; both files must be of the same kind. Exits with 1 if a number became worse beyond
its noise, or is missing from the new file; with 2 if the files cannot be compared.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Noise between runs of the same code, as far as is known. Three H200s gave 2,600, 2,650 and 2,719 items/s on one
# day, 4.5% from lowest to highest; means and medians of latencies vary for the same reason. The p99 of some
# thousand calls rests on a few dozen of them, and one pause of the machine moves it.
RATE_NOISE = 0.05
TAIL_NOISE = 0.30
# A ratio within one run does not depend on clock rates, and its interval is that run's noise. Loading the model
# again (other addresses, other kernels chosen) may add to it; 2% is a guess, not a measurement.
RATIO_NOISE = 0.02

# Numbers that forward.json, serving.json and decode_serving.json hold of a batch or a window, and their noise.
FORWARD = {"gpu_ms": RATE_NOISE, "launch_ms": TAIL_NOISE, "total_ms": RATE_NOISE}
LATENCIES = {"avg": RATE_NOISE, "p50": RATE_NOISE, "p99": TAIL_NOISE}
STREAMS = {
    "ttft": {"p50": RATE_NOISE, "p99": TAIL_NOISE},
    "tpot": {"mean": RATE_NOISE, "p99": TAIL_NOISE},
    "itl": {"p50": RATE_NOISE, "p99": TAIL_NOISE},
}


class NotComparable(Exception):
    """The files do not hold the same kind of results."""


@dataclass(frozen=True)
class Number:
    """A value with an interval: that of its own run, or the noise between runs."""

    value: float
    low: float
    high: float
    higher_is_better: bool = False


@dataclass(frozen=True)
class Change:
    """A number in both runs: `ratio` is new / old, `moved` that the intervals do not overlap."""

    name: str
    ratio: float
    moved: bool
    worse: bool

    def __str__(self) -> str:
        verdict = "WORSE" if self.worse else "better" if self.moved else "within noise"
        return f"{self.name:60s} x {self.ratio:6.3f}  {verdict}"


def numbers(results: Any, noise: float | None = None) -> dict[str, Number]:
    """The comparable numbers of a result file by name.

    Args:
        noise: Share that replaces the noise assumed for numbers without an interval.

    Raises:
        NotComparable: There are none.
    """
    found = dict(_numbers(results, noise)) if isinstance(results, dict) else {}
    if not found:
        raise NotComparable("a file holds no results of a kind that is known")
    return found


def compare(old: dict[str, Number], new: dict[str, Number]) -> list[Change]:
    """Compare every number of the old run; one that the new run lacks counts as worse.

    Raises:
        NotComparable: They have no number in common.
    """
    if not old.keys() & new.keys():
        raise NotComparable("the files have no number in common")
    changes = []
    for name, before in old.items():
        after = new.get(name)
        if after is None:
            changes.append(Change(f"{name} (missing)", math.nan, moved=True, worse=True))
            continue
        rose, fell = after.low > before.high, after.high < before.low
        ratio = after.value / before.value if before.value else math.nan
        worse = fell if before.higher_is_better else rose
        changes.append(Change(name, ratio, rose or fell, worse))
    return changes


def _numbers(results: dict[str, Any], noise: float | None) -> Iterator[tuple[str, Number]]:
    for group, found in results.get("groups", {}).items():
        # Ratios are to the first arm. A higher one is better: more time lost without an optimisation, or more
        # throughput kept with text or gained with a second GPU.
        for arm, measured in list(found.get("arms", {}).items())[1:]:
            ratio, half = measured["ratio"], (1 + (noise or RATIO_NOISE)) ** 0.5
            number = Number(ratio["median"], ratio["low"] / half, ratio["high"] * half, higher_is_better=True)
            yield f"{group}: {arm}", number
        # In decode-*.json the first arm is not always the default, so times are compared instead of ratios.
        for arm, measured in found.items():
            if isinstance(measured, dict) and "tpot_ms" in measured:
                yield f"{group}: {arm}, ms a token", _about(measured["tpot_ms"], noise or RATE_NOISE)
    for point in results.get("points", []):
        for field, share in LATENCIES.items():
            yield f"{point['name']}: {field}", _about(point[field], noise or share)
        if point["group"] in ("closed", "cache", "text"):
            rate = _about(point["items_per_s"], noise or RATE_NOISE, higher_is_better=True)
            yield f"{point['name']}: items/s", rate
    for window in results.get("windows", []):
        if window["group"] == "poisson":  # its rate is a share of that run's own maximum
            continue
        name = window["name"]
        for what, fields in STREAMS.items():
            for field, share in fields.items():
                yield f"{name}: {what} {field}", _about(window[what][field], noise or share)
        rate = _about(window["output_tokens_per_s"], noise or RATE_NOISE, higher_is_better=True)
        yield f"{name}: tokens/s", rate
    for batch, measured in results.items():
        if isinstance(measured, dict) and FORWARD.keys() <= measured.keys():
            for field, share in FORWARD.items():
                yield f"{batch}: {field}", _about(measured[field], noise or share)


def _about(value: float, noise: float, higher_is_better: bool = False) -> Number:
    """A value without an interval; two of them differ if they are a share of `noise` apart."""
    half = (1 + noise) ** 0.5
    return Number(value, value / half, value * half, higher_is_better)


def main() -> int:
    """Print all changes, the worst last; the module's docstring explains the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--noise", type=float, help="share by which numbers without an interval may differ (default: by kind)"
    )
    options = parser.parse_args()
    try:
        files = [json.loads(path.read_text(encoding="utf-8")) for path in (options.old, options.new)]
        old, new = (numbers(results, options.noise) for results in files)
        changes = compare(old, new)
    except (NotComparable, OSError, json.JSONDecodeError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    for change in sorted(changes, key=lambda change: (change.worse, change.moved)):
        print(change)
    worse = sum(change.worse for change in changes)
    print(f"{len(changes)} numbers, {sum(change.moved for change in changes)} moved, {worse} of them worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
