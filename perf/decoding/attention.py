"""Attention of one layer of a decode step: our kernel with several tile sizes against FlashInfer's.

usage: python -m perf.decoding.attention [--out DIR] [--shapes 16x1088,32x1088,5x8256]        (one CUDA GPU)

Every row is a sequence of the same length, in shuffled pages of a pool for each layer, so that no layer finds its
keys in the L2 cache. FlashInfer's plan, on the host before each step, is not counted. The floor is the time to
read keys and values once at the bandwidth that large copies reach.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from hiscore.attention import paged_triton
from hiscore.attention.paged_triton import SplitLaunch
from perf.machine.facts import process_facts
from perf.machine.graph_timer import microseconds
from perf.script import arguments, by_comma, described, failed, write_json

HEADS = {"qwen3-0.6b": (16, 8), "qwen3-8b": (32, 8)}
SHAPES = ",".join(f"{rows}x{tokens}" for tokens in (1_088, 8_256) for rows in (1, 4, 16, 32, 64))
HEAD_DIM, PAGE = 128, 64
SCALE = HEAD_DIM**-0.5
LAYERS, LEAST_BYTES = 28, 512 << 20
BANDWIDTH = 4.3e12
"""Bytes per second that large copies reach on an H200; its data sheet says 4.8e12."""
TOLERANCE = 0.01
"""Means of 1,000 and more values of about 1, in bfloat16: up to 0.2, each with a relative error of 2^-8."""


@dataclass
class Sequences:
    """Sequences of `tokens` tokens, one for each row, and the query of each.

    Attributes:
        pools: Of each layer, [pages, PAGE, 2, kv_heads, HEAD_DIM].
        q: [rows, heads, HEAD_DIM].
        pages: int32 [rows, pages of a sequence].
    """

    rows: int
    tokens: int
    heads: int
    kv_heads: int
    pools: list[Tensor] = field(init=False)
    q: Tensor = field(init=False)
    pages: Tensor = field(init=False)

    def __post_init__(self) -> None:
        each = -(-self.tokens // PAGE)
        torch.manual_seed(0)
        layers = max(1, min(LAYERS, LEAST_BYTES // self.bytes))
        size = (self.rows * each, PAGE, 2, self.kv_heads, HEAD_DIM)
        self.pools = [torch.randn(size, dtype=torch.bfloat16, device="cuda") for _ in range(layers)]
        self.q = torch.randn(self.rows, self.heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        self.pages = torch.randperm(self.rows * each, device="cuda").view(self.rows, each).int()

    @property
    def bytes(self) -> int:
        """Bytes of a layer's keys and values."""
        return 2 * self.rows * self.tokens * 2 * self.kv_heads * HEAD_DIM


Attend = Callable[[Tensor], Tensor]
"""One layer's attention over its pool: [rows, heads, HEAD_DIM]."""


def ours(of: Sequences, launch: SplitLaunch | None) -> Attend:
    """Our kernel as a step launches it, or with other sizes."""
    if launch is not None:
        paged_triton.choose_launch = lambda *_: launch
    counts = torch.full((of.rows, 1), of.pages.shape[1], dtype=torch.int32, device="cuda")
    seq_indices = torch.arange(of.rows, dtype=torch.int32, device="cuda")
    positions = torch.full((of.rows,), of.tokens - 1, dtype=torch.int32, device="cuda")

    def attend(pool: Tensor) -> Tensor:
        return paged_triton.paged_attention(
            of.q, pool.flatten(0, 1), PAGE, of.pages, counts, seq_indices, positions, of.tokens, SCALE,
            by_sequence=True,
        )  # fmt: skip

    return attend


def flashinfer(of: Sequences, tensor_cores: bool, backend: str) -> Attend:
    """FlashInfer's batched decode, planned once."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=tensor_cores, backend=backend
    )
    each = of.pages.shape[1]
    wrapper.plan(
        torch.arange(of.rows + 1, dtype=torch.int32) * each,
        of.pages.flatten(),
        torch.full((of.rows,), of.tokens - (each - 1) * PAGE, dtype=torch.int32),
        of.heads, of.kv_heads, HEAD_DIM, PAGE,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, sm_scale=SCALE,
    )  # fmt: skip
    return lambda pool: wrapper.run(of.q, pool.unbind(2))


def measure(of: Sequences) -> dict[str, float]:
    """Microseconds of every arm, the fastest first; those that fail or disagree are printed and left out."""
    chosen = paged_triton.choose_launch
    arms: dict[str, Callable[[], Attend]] = {"as launched": partial(ours, of, None)}
    for n, warps, stages in itertools.product((32, 64, 128), (4, 8), (1, 2, 3)):
        arms[f"N{n} w{warps} s{stages}"] = partial(ours, of, SplitLaunch(16, n, warps, stages))
    for tensor_cores, backend in ((False, "auto"), (True, "fa2"), (True, "fa3")):
        name = f"flashinfer {backend if tensor_cores else 'without tensor cores'}"
        arms[name] = partial(flashinfer, of, tensor_cores, backend)
    times: dict[str, float] = {}
    expected = ours(of, None)(of.pools[0])
    for name, make in arms.items():
        try:
            attend = make()
            difference = (attend(of.pools[0]) - expected).abs().max().item()
            if not difference < TOLERANCE:
                raise ArithmeticError(f"differs by {difference}")
            runs = [partial(attend, pool) for pool in of.pools * (LAYERS // len(of.pools))]
            times[name] = microseconds(runs, warmup_ms=10, measured_ms=30)
        except Exception as error:
            print(failed(f"{name}: {described(error)[:200]}"), flush=True)
        paged_triton.choose_launch = chosen
    return dict(sorted(times.items(), key=lambda entry: entry[1]))


def main() -> None:
    """Measure; writes decode_attention.json."""
    parser = arguments(__doc__, "decode_attention.json", required=False)
    parser.add_argument("--shapes", type=by_comma, default=by_comma(SHAPES), help="rows x tokens")
    args = parser.parse_args()
    results: dict[str, object] = {"machine": process_facts(args.commit)}
    for name, (heads, kv_heads) in HEADS.items():
        for shape in args.shapes:
            rows, tokens = map(int, shape.split("x"))
            of = Sequences(rows, tokens, heads, kv_heads)
            times = measure(of)
            floor = 1e6 * of.bytes / BANDWIDTH
            results[f"{name}, {shape}"] = {"floor": floor, **times}
            peers = {arm: round(us, 1) for arm, us in times.items() if arm.startswith("flashinfer")}
            best = [f"{arm}: {us:.1f}" for arm, us in times.items() if arm not in peers][:3]
            as_launched = times.get("as launched", float("nan"))
            print(
                f"{name} {shape}: floor {floor:.1f}, as launched {as_launched:.1f}; {'; '.join(best)}; {peers}",
                flush=True,
            )
            del of
            torch.cuda.empty_cache()
    if args.out:
        write_json(args.out / "decode_attention.json", results)


if __name__ == "__main__":
    main()
