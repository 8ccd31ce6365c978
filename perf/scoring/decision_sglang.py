"""The prompts of `decision_served`, answered by SGLang's scoring API in process, a whole prompt for each question.

usage: python perf/scoring/decision_sglang.py --prompts FILE --checkpoint DIR --out DIR [--ours FILE]
           [--tag NAME] [key=json ...]

Imports nothing of this repository, so that it runs in SGLang's own environment. All prompts of a call are there at
once, as token ids and without HTTP: SGLang at its best. Pairs key=json go to its engine: schedule_policy='"lpm"'.
With --ours, decision_served.json, it prints the ratios. As a check, its probabilities are compared with ours, and
as a control with those of other questions.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


async def measure(engine: Any, prompts: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds by number of questions, and how far the last call's answers are from ours."""
    labels, warm_up = prompts["labels"], prompts["warm_up"]
    found: dict[str, Any] = {}
    for count, calls in prompts["calls"].items():
        took = []
        for call in calls:
            start = time.perf_counter()
            answer = await engine.async_score(
                query=call["query"], items=call["items"], label_token_ids=labels, apply_softmax=True
            )
            took.append(1e3 * (time.perf_counter() - start))
        p50 = statistics.median(took[warm_up:])
        # Newer versions answer with an object, older ones with the list itself.
        theirs = [row[0] for row in getattr(answer, "scores", answer)]
        ours = [row[0] for row in prompts["scores"][count]]
        found[count] = {
            "sglang": {
                "p50_ms": p50,
                "min_ms": min(took[warm_up:]),
                "questions_a_second": 1e3 * int(count) / p50,
            },
            "apart": max(abs(a - b) for a, b in zip(ours, theirs, strict=True)),
            "apart_of_others": statistics.mean(
                abs(a - b) for a, b in zip(ours, [*theirs[1:], theirs[0]], strict=True)
            ),
        }
        print(
            f"{count:>3s} questions: SGLang {p50:.1f} ms, {1e3 * int(count) / p50:.0f} questions/s; "
            f"probabilities {found[count]['apart']:.4f} apart at most, those of other questions "
            f"{found[count]['apart_of_others']:.4f} on average",
            flush=True,
        )
    return found


def compare(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Print how many times their questions a second ours are."""
    for count, each in theirs.items():
        rate = each["sglang"]["questions_a_second"]
        shown = ", ".join(
            f"{way} {found['questions_a_second'] / rate:.2f} x"
            for way, found in ours["questions"][count].items()
        )
        print(f"{count:>3s} questions, hiscore beside SGLang: {shown}", flush=True)


def main() -> int:
    """Measure; writes decision_sglang-TAG.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ours", type=Path)
    parser.add_argument("--tag", default="default")
    parser.add_argument("engine", nargs="*", metavar="key=json")
    options = parser.parse_args()
    import sglang

    more = {key: json.loads(value) for key, value in (each.split("=", 1) for each in options.engine)}
    engine = sglang.Engine(
        model_path=options.checkpoint, skip_tokenizer_init=True, dtype="bfloat16", mem_fraction_static=0.4,
        log_level="warning", **more,
    )  # fmt: skip
    try:
        # The engine's processes answer on its own event loop.
        loop: asyncio.AbstractEventLoop = engine.loop
        found = loop.run_until_complete(measure(engine, json.loads(options.prompts.read_text())))
    finally:
        engine.shutdown()
    results = {"engine": f"SGLang {sglang.__version__}", "options": more, "questions": found}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"decision_sglang-{options.tag}.json").write_text(json.dumps(results, indent=1))
    if options.ours:
        compare(found, json.loads(options.ours.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
