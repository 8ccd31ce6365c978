"""Attention of one layer: our kernel with several tile sizes against FlashInfer's backends.

usage: python -m perf.scoring.attention [--out DIR]        (one CUDA GPU)
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch

from hiscore.attention import packed_triton
from hiscore.attention.base import AttentionShape
from hiscore.attention.metadata import Forward
from hiscore.attention.packed_triton import TileLaunch, TileTables, TritonAttention
from hiscore.prefill.input_layout import InputLayout
from hiscore.scoring.packing.packing import pack
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt
from perf.machine.graph_timer import microseconds
from perf.script import arguments, write_json

# Two layers, because in a model's last layer only scored rows attend.
SHAPE = AttentionShape(16, 8, 128, 128**-0.5, None, (None, None))
SHAPES = {
    "300": [(300, [0])],
    "120+10x180": [(120, [180] * 10)],
    "8 x 120+10x180": [(120, [180] * 10)] * 8,
    "2000+100x20": [(2000, [20] * 100)],
    "100+100x5": [(100, [5] * 100)],
    "50+400x2": [(50, [2] * 400)],
}
GRAPH_LAYERS = 28


def forward_of(calls: list[tuple[int, list[int]]]) -> Forward:
    """Pack random calls, each given by the lengths of its query and items."""
    rng = np.random.default_rng(0)
    packed = [
        MultiItemPrompt(rng.integers(0, 1000, query + sum(items)).astype(np.int32), query, np.array(items))
        for query, items in calls
    ]
    (forward,) = pack(packed, 65_536, QueryCache(1, 0, caching=False)).forwards
    return forward


def layers_us(run: Callable[[], object]) -> float:
    """GPU time of one call in microseconds, from as many calls as a model has layers."""
    return microseconds([run] * GRAPH_LAYERS, warmup_ms=20, measured_ms=60)


def ours(forward: Forward, launch: TileLaunch, qkv: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Our kernel with one launch configuration: microseconds and output."""
    packed_triton.choose_launch = lambda *_: launch
    attention = TritonAttention(
        SHAPE, torch.bfloat16, torch.cuda.get_device_properties(0).multi_processor_count
    )
    rows = len(forward.input_ids)
    layout = InputLayout(rows)
    buffer, slots = layout.pack(forward, attention.rows_per_tile)
    device_slots = torch.from_numpy(np.append(slots, 0).astype(np.int32)).cuda()
    tables = TileTables(rows, attention.rows_per_tile, torch.device("cuda"))
    *_, attention.inputs = layout.views(torch.from_numpy(buffer).cuda(), device_slots, tables)
    attention.cut_into_tiles()
    pool = torch.zeros(PAGE, 2, 8, 128, dtype=torch.bfloat16, device="cuda")
    out = attention.attend(0, qkv, pool)
    return layers_us(lambda: attention.attend(0, qkv, pool)), out


def flashinfer_paged(forward: Forward, backend: str, qkv: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Every segment as a sequence whose page table holds the query's slots and its own.

    Returns:
        Microseconds and output.
    """
    import flashinfer

    edges = forward.cu_seqlens.astype(np.int64)
    tables, lengths = [], []
    for group in forward.groups:
        context = np.arange(group.context_rows.start, group.context_rows.stop)
        first, last = np.searchsorted(edges, (group.first_row, group.last_row))
        for segment in range(first, last):
            tables.append(np.concatenate((context, np.arange(edges[segment], edges[segment + 1]))))
            lengths.append(len(tables[-1]))
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
    wrapper.plan(
        torch.from_numpy(edges.astype(np.int32)),
        torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)),
        torch.from_numpy(np.concatenate(tables).astype(np.int32)).cuda(),
        torch.ones(len(lengths), dtype=torch.int32),
        16, 8, 128, 1, causal=True, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    heads = qkv.view(len(qkv), 32, 128)
    q = heads[:, :16].contiguous()
    k, v = heads[:, 16:24].unsqueeze(1).contiguous(), heads[:, 24:].unsqueeze(1).contiguous()
    out = wrapper.run(q, (k, v)).flatten(1)
    return layers_us(lambda: wrapper.run(q, (k, v))), out


def main() -> None:
    """Measure; writes attention.json."""
    parser = arguments(__doc__, "attention.json", required=False)
    out = parser.parse_args().out
    results: dict[str, dict[str, float]] = {}
    for name, calls in SHAPES.items():
        forward = forward_of(calls)
        qkv = torch.randn(len(forward.input_ids), 32 * 128, device="cuda").bfloat16()
        times: dict[str, float] = {}
        reference = None
        for m, n, warps, stages, per_sm in itertools.product((64, 128), (32, 64), (4,), (2, 3), (2, 3, 4)):
            key = f"M{m} N{n} w{warps} s{stages} x{per_sm}"
            try:
                times[key], output = ours(forward, TileLaunch(m, n, warps, stages, per_sm), qkv)
            except Exception as error:
                print(name, key, type(error).__name__, flush=True)
                continue
            reference = output if reference is None else reference
            # Sums of products in bfloat16 differ in their last bits between tile sizes.
            assert (output - reference).abs().max() < 0.05, key
        for backend in ("fa2", "fa3"):
            try:
                times[f"flashinfer {backend}"], output = flashinfer_paged(forward, backend, qkv)
                assert reference is not None
                times[f"flashinfer {backend} difference"] = (output - reference).abs().max().item()
            except Exception as error:
                print(name, backend, type(error).__name__, str(error)[:200], flush=True)
        results[name] = dict(sorted(times.items(), key=lambda entry: entry[1]))
        best = [f"{key}: {us:.1f}" for key, us in results[name].items() if "difference" not in key][:6]
        fi = {k: round(v, 4) for k, v in times.items() if k.startswith("flashinfer")}
        print(f"{name}: {'; '.join(best)}  {fi}", flush=True)
    if out:
        write_json(out / "attention.json", results)


if __name__ == "__main__":
    main()
