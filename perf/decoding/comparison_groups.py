"""Which arms `perf.decoding.time_per_token` compares under one load; the first of each group is the reference."""

from perf.decoding.arms import Arm
from perf.decoding.engine_load import Load

QUEST = {"selector": "quest"}
DEFERRED = {"backup_ring": 1}
"""A step waits for the copy of the step before."""
SAMPLING: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top_k 20, top_p 0.95": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.1, "presence_penalty": 0.5},
    "logprobs 5": {"logprobs": 5},
}


def swap_in_arms(top_k: int, buffer: int, selector: str) -> list[Arm]:
    """A selector with and without its copies from the host."""
    settings = {"selector": selector, "sparse_top_k": top_k, "device_buffer_size": buffer}
    name = f"{selector} {top_k} of {buffer}"
    return [Arm(name, settings), Arm(f"{name}, no swap-in", settings, "swap-in")]


def groups(family: str, load: Load) -> dict[str, list[Arm]]:
    """Arms by group.

    Args:
        family: `grouped` (keys and values by head) or `latent`.
        load: Its prompts decide how many tokens are selected.
    """
    dense = {"selector": "dense"}
    # Rehearsals have short prompts, so they select fewer tokens.
    sizes = (2_048, 1_024, 512) if load.prompt > 4_096 else (64,)
    own = "quest" if family == "grouped" else "dsa"
    return {
        "backup": [
            Arm("ring", dense),
            Arm("blocking", dense | DEFERRED, blocking=True),
            Arm("deferred", dense | DEFERRED),
            Arm("no backup", dense, "backup"),
        ],
        "sparse protocols": [
            Arm(f"{own}, ring", _sized(own, sizes[0])),
            Arm(f"{own}, blocking", _sized(own, sizes[0]) | DEFERRED, blocking=True),
            Arm(f"{own}, deferred", _sized(own, sizes[0]) | DEFERRED),
            Arm(f"{own}, no backup", _sized(own, sizes[0]), "backup"),
        ],
        **{f"swap-in, top {top}": swap_in_arms(top, 2 * top, own) for top in sizes},
        f"swap-in, tight {sizes[0]}": swap_in_arms(sizes[0], sizes[0] * 9 // 8, own),
        "sampling": [Arm(name, dense, sampling=given) for name, given in SAMPLING.items()],
        "selectors": [Arm("dense", dense), Arm(own, _sized(own, sizes[0]))],
    }


def _sized(selector: str, top_k: int) -> dict[str, object]:
    return {"selector": selector, "sparse_top_k": top_k, "device_buffer_size": 2 * top_k}
