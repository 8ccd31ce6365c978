"""One made-up result file of every kind that a report knows, small and with recognisable numbers."""

import copy
from typing import Any

from perf.report.parts import Raw

INTERVAL = {"median": 1.25, "low": 1.125, "high": 1.375}
AUC = {"value": 0.75, "low": 0.5, "high": 1.0}
MACHINE = {"gpu": "Some GPU", "cpu": "Some CPU", "cores": 4, "commit": "c0ffee", "packages": {"torch": "2"}}
REQUEST = {"query": 120, "items": 10, "item": 180}
# perf_analyzer's own report of three runs with one call at a time: two prompts and the request.
ANALYZER_LOG = "".join(
    f"$ perf_analyzer -m scorer --concurrency-range 1\n"
    f"    Avg gRPC time: {client} usec ((un)marshal request/response 9 usec)\n"
    f"    Avg request latency: 4000 usec (overhead 100 usec + queue 200 usec"
    f" + compute input 50 usec + compute infer {infer} usec + compute output 30 usec)\n"
    for client, infer in ((2_500, 2_000), (2_600, 2_100), (5_615, 5_086))
)


def point(name: str, group: str, **more: Any) -> dict[str, Any]:
    """A window of calls to the scorer."""
    return {
        "name": name,
        "group": group,
        "shape": "120 + 10 x 180",
        "offered": None,
        "calls": 1_000,
        "failed": 0,
        **dict.fromkeys(("rate", "items_per_s"), 50.0),
        **dict.fromkeys(("avg", "p50", "p90", "p99"), 4.5),
        **dict.fromkeys(("within_50_ms", "gpu_busy"), 0.875),
        "gpu_memory_gib": 12.5,
        "late_p99": 0.25,
        "cached_calls": 250,
        **more,
    }


def sequences(group: str, per_token: float) -> dict[str, Any]:
    """A window of sequences through the server, all of its times alike."""
    times = dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "worst"), per_token)
    return {
        "group": group,
        "name": f"8 in, 2 out, {group}",
        **dict.fromkeys(("streams", "failed"), 5),
        **dict.fromkeys(("output_tokens_per_s", "input_tokens_per_s", "tokens_per_response"), 2.5),
        **dict.fromkeys(("ttft", "tpot", "itl", "end_to_end"), times),
        **dict.fromkeys(("gpu_busy", "agreement"), 1.0),
    }


def arms(*names: str, unit: str = "ms per call", **more: Any) -> dict[str, Any]:
    """A comparison; `INTERVAL` is every arm's value and ratio."""
    arm = {"value": INTERVAL, "ratio": INTERVAL, "largest_difference": 0.0, **more}
    return {"what": "w", "unit": unit, "arms": {name: dict(arm) for name in names}}


def decoded(tpot_ms: float) -> dict[str, Any]:
    """An arm of decoding in one process."""
    return {
        "device_bytes": {"staging": 2**30, "buffer": 2**31, "tables": 8},
        "ratio": INTERVAL,
        "tpot_ms": tpot_ms,
        "itl_p99_ms": 2.0,
        "ttft_ms": 3.0,
        "hit_rate": 0.5,
    }


def selection_variant(name: str) -> dict[str, Any]:
    """A selector's quality."""
    task = {"prompt": 64, "judged": 8, "perplexity": 3.5, "answer_right": True, "agreement": 0.875}
    tasks = [{"task": "a text", "divergence": 0.125, **task}]
    return {
        "name": name,
        "groups": {kind: {"tasks": tasks, "hit_rate": 0.5} for kind in ("texts", "pass keys")},
    }


RESULTS: dict[str, Any] = {
    "serving.json": {
        "machine": MACHINE,
        "plan": {"request": REQUEST},
        "points": [
            point("alone 300 + 1 x 0", "alone", shape="300 + 1 x 0", avg=2.25),
            point("Poisson 70/s", "open", offered=70, rate=70.0, p99=6.5),
            point("Poisson 70/s, perf_analyzer", "open", offered=70),
            point("Poisson 100/s", "open", offered=100, rate=100.0),
            point("1 in flight", "closed"),
            point("4 in flight", "closed", items_per_s=200.0),
        ],
        "saturation": {"items_per_s": 2_345.0, "window": "4 in flight"},
        "check": {"scores": 60, "difference": 1e-6, "tolerance": 2e-5, "control": 0.5},
        "failures": [],
    },
    "score_load.json": {
        "plan": {"request": REQUEST},
        "load": {"seconds": {"fresh": 120}},
        "points": [point("fresh ids, Poisson 70/s", "open", offered=70, p99=25.5)],
        "failures": [],
    },
    "score_load-more.json": {
        "plan": {"request": REQUEST},
        "load": {"seconds": {"fresh": 120}},
        "points": [point("fresh text, Poisson 70/s, more", "open", offered=70)],
        "failures": ["fresh text: lost"],
    },
    "ablations.json": {
        "groups": {
            "overlap, saturated": arms("overlap", "each batch waited for"),
            "delimiters, alone": arms("computed ahead", "searched", idle={"any_gap": 0.29, "long_gaps": 0.1}),
            "decode step, alone": arms("prefill only", "and a step"),
        }
    },
    "text_cost.json": {
        "machine": MACHINE,
        "groups": {"text": arms("ids", "text", unit="calls a second")},
        "tokenizer": {"tokens": 100}
        | {f"{clock}_ms_in_batches_of_{size}": 2.0 for clock in ("wall", "cpu") for size in (1, 8)},
    },
    "forward.json": {
        "dtype": "bfloat16",
        "device": "Some GPU",
        "1 prompt of 300": {"gpu_ms": 1.0, "launch_ms": 0.5, "total_ms": 1.5},
        "1 x (120 + 10 x 180)": {"gpu_ms": 3.0, "launch_ms": 0.5, "total_ms": 4.0},
    },
    "decode_serving.json": {
        "settings": {"selector": "quest", "sparse_top_k": 64, "device_buffer_size": 128},
        "failures": ["a window: too late"],
        "windows": [
            sequences("benchmark, blocking", 24.5),
            sequences("benchmark, ring", 12.25),
            sequences("sweep", 1),
        ],
    },
    "decode-tiny.json": {
        "geometry": "tiny",
        "load": {"streams": 3, "prompt": 4, "tokens": 5},
        "groups": {
            "backup": {"ring": decoded(2.0), "blocking": decoded(2.5)},
            "broken": {"error": "RuntimeError: no"},
        },
    },
    "decode_floor.json": {
        "bandwidth": 4.3e12,
        "tiny, dense": {
            "engine": {"itl_p50_ms": 2.0, "tpot_ms": 2.5},
            "bare_step_ms": 1.75,
            "floor_ms": 1.5,
            "over_floor": 1.33,
        },
    },
    "decode_oversubscribed.json": {
        "load": {"streams": 15, "prompt": 32_000, "tokens": 768},
        "device_kv_bytes": 2**31,
        "arms": {
            name: {
                "tokens_per_s": rate,
                "decode_tokens_per_s": rate,
                "rows_per_step": 3.0,
                "ttft_ms": 1e3,
                "hit_rate": 0.5,
            }
            for name, rate in (("dense", 100.0), ("quest", 260.0))
        },
    },
    "decode_beside.json": {
        "streams": {"count": 16, "prompt": 2_048, "tokens": 512},
        "points": [point("scoring alone", "open", offered=70)],
        "flows": {"streams alone": [{"tokens_per_s": 9.0, "gap_p50": 1.0, "gap_p99": 2.0, "gap_worst": 3.0}]},
    },
    "quality.json": {
        "reviews": 20,
        "prompt": "shots",
        "rows": [
            {
                "dtype": "float32",
                "auc": AUC,
                "auc_gain": {"value": 0.0, "low": 0.0, "high": 0.0},
                **dict.fromkeys(("largest_difference", "between_batches"), 0.0),
                "spearman": 1.0,
            }
        ],
    },
    "quality_served.json": {
        "reviews": 30,
        "dtype": "float32",
        "reference_dtype": "float32",
        **dict.fromkeys(("auc", "auc_transformers", "auc_gain"), AUC),
        **dict.fromkeys(("largest_difference", "mean_difference", "control"), 0.125),
        **dict.fromkeys(("spearman", "same_best_of_ten"), 1.0),
        "prompt_tokens": 1_234,
        "cached_tokens": 56,
    },
    "decode_quality.json": {
        "model": "tiny",
        "prompt": 64,
        "lengths": [64],
        "variants": [selection_variant("dense"), selection_variant("quest 128, page 16, 2 dense layers")],
    },
    "peers.json": {
        "what": "w",
        "groups": {"one call": arms("hiscore", "transformers")},
        "skipped": ["vllm: not here"],
    },
    "roofline.json": {
        "dtype": "bfloat16",
        "matmul": [{"shape": "8 x 8 x 8", "flops": 7e12}],
        "copy": [{"what": "read", "mib": 64, "bytes_per_s": 3e9}],
        "forwards": [{"name": "one call", "seconds": 0.5, "flop": 1e12, "weight_bytes": 10**9}],
    },
    "cpu_cost.json": {
        "said": ["s"],
        "rows": [{"what": "tokenizer", "value": 12_345.0, "unit": "tokens/s"}],
        "memory": [{"calls": calls, "rss_mib": 100.0, "shm_mib": 2.0} for calls in (0, 10)],
    },
    "bench.json": {
        "steps": [
            {"name": "a lost step", "command": "python -m perf.x", "code": 3, "seconds": 1.0},
            {"name": "a good step", "command": "python -m perf.y", "code": 0, "seconds": 1.0},
        ],
        "not_run": ["a long step: no time"],
    },
}


def made() -> Raw:
    """All of them; a copy that a test may change."""
    return Raw(copy.deepcopy(RESULTS), ANALYZER_LOG)
