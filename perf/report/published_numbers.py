"""Published numbers of four changes to SGLang that this project makes as well, before and after.

Copied from the pull requests; not measured here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A number before and after the change."""

    what: str
    before: float
    after: float


@dataclass(frozen=True)
class Change:
    """A published change; `where` is its hardware, model and load."""

    title: str
    where: str
    rows: tuple[Row, ...]


REMOVE_DECODE = Change(
    "Scoring without a decode step (SGLang 8840)",
    "H100, a pruned Qwen3-0.6B in float16, HTTP, 10 items of 120 + 180 tokens, Poisson 70 calls/s for 120 s; "
    "without CUDA graphs, with torch.compile",
    (
        Row("call, average ms", 83.92, 51.16),
        Row("call, p50 ms", 51.77, 39.10),
        Row("call, p90 ms", 114.13, 73.37),
        Row("call, p99 ms", 621.66, 391.96),
        Row("one prompt of 300 tokens alone, ms", 33.0, 20.0),
    ),
)

# The pull request only gives a gain in throughput: "about 4.5%".
DELIMITERS = Change(
    "Delimiters known before the forward (SGLang 22544)",
    "multi-item scoring, hardware and load not stated",
    (Row("throughput, to that before", 1.0, 1.045),),
)

BACKUP = Change(
    "Decode's backup behind the forward (SGLang 21932)",
    "8 x H20 96 GB, DeepSeek-V3.2-Exp, HiSparse with top-k 2,048 and a buffer of 4,096; 30 prompts of 8,192 "
    "tokens, 1,500 to generate, 5 at a time",
    (
        Row("per token after the first, mean ms", 33.89, 32.07),
        Row("per token after the first, median ms", 33.51, 31.71),
        Row("per token after the first, p99 ms", 36.86, 34.97),
        Row("between responses, median ms", 30.71, 29.93),
        Row("between responses, p95 ms", 46.76, 38.50),
        Row("between responses, p99 ms", 54.12, 47.34),
        Row("first token, median ms", 7709.10, 7703.16),
        Row("end to end, mean ms", 57958.54, 55234.13),
        Row("output tokens/s", 129.29, 135.67),
        Row("all tokens/s", 835.39, 876.61),
    ),
)

OVERLAP = Change(
    "One wait fewer in overlapped scheduling (SGLang 4790)",
    "A800, an 8B Llama, offline, 100 prompts of ShareGPT; its maintainers found the change within the error range",
    (
        Row("requests/s", 4.20, 4.25),
        Row("input tokens/s", 1410.32, 1424.93),
        Row("output tokens/s", 893.66, 902.92),
        Row("all tokens/s", 2303.99, 2327.86),
    ),
)
