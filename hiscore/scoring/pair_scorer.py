"""The scorer of encoders: every item makes a pair with the query, and nothing is shared between pairs."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hiscore.device.copies import free_bytes, memory_of
from hiscore.layers.lm_head import LMHead
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.encoders.encoder import Encoder, read_encoder_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.facts import read_facts
from hiscore.models.support import CheckpointFacts, has_tokenizer
from hiscore.models.weight_bytes import weight_bytes
from hiscore.parallel.rank import Leader
from hiscore.prefill.encoder_runner import make_encoder_runner
from hiscore.scoring.computation import Computation
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.memory import CPU_ATTENTION_BYTES, CUDA_BYTES, PROCESS_BYTES
from hiscore.scoring.packing.batch_plan import ScoringPlan
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.packing.pairs import PairRules, as_pairs, pack_pairs
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.precision import DTYPES, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.scorer import Scorer
from hiscore.server.plan import MemoryLine, MemoryPlan
from hiscore.server.server_resources import ServerResources
from hiscore.tokenization.tokenizer import load_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairPacking:
    """Packs an encoder's prompts into forwards of `budget` tokens: items with the query, nothing cached."""

    budget: int
    rules: PairRules
    cache: QueryCache = field(default_factory=lambda: QueryCache(0, 0, caching=False))

    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        return as_pairs(prompt)

    def plan(self) -> ScoringPlan:
        return ScoringPlan(self.cache, self.budget)

    def pack(self, prompts: Sequence[MultiItemPrompt]) -> Batch:
        return pack_pairs(prompts, self.budget, self.rules)


def load_encoder_scorer(
    checkpoint: Path,
    device: str = "auto",
    dtype: str = "auto",
    max_batch_tokens: int = 16_384,
    max_context: int | None = None,
    resources: ServerResources | None = None,
) -> Scorer:
    """Plan the memory, load an encoder's checkpoint and, on CUDA, capture graphs.

    Args:
        dtype: float32 or bfloat16; "auto": bfloat16 on a GPU, else float32.
        max_batch_tokens: Tokens of one forward; a longer pair has a forward of its own.
        max_context: Tokens of a pair; None: the checkpoint's `context_limit`.

    Raises:
        UnsupportedCheckpoint: The encoder cannot compute the checkpoint.
        MemoryExceeded: The device has no room for it.
        ValueError: dtype is fp8, or `max_context` exceeds the checkpoint's context.
    """
    if dtype == "fp8":
        raise ValueError(f"DTYPE is {dtype}: encoders are served in float32 and bfloat16")
    on = use_device(device)
    precision = pick_dtype(dtype, on)
    warn_if_slow(precision, on)
    numbers = DTYPES[precision]
    a, _ = read_encoder_architecture(checkpoint, max_context)
    max_rows = max(max_batch_tokens, a.context_length)
    resources = resources or ServerResources()
    # All memory is claimed before any is allocated.
    resources.ledger.free(memory_of(on), lambda: free_bytes(on))
    weights = weight_bytes(checkpoint, numbers.itemsize)
    plan = plan_pairs(memory_of(on), a, numbers.itemsize, weights, max_rows)
    resources.ledger.claim(resources.owner(on), plan)
    encoder = Encoder(checkpoint, on, numbers, max_context)
    encoder.after_layer = resources.progress
    head = LMHead(encoder.weights.head.weight, None, encoder.weights.head.bias)
    rules = PairRules(
        token_types=_token_types(checkpoint) if a.token_types > 1 else (0, 0),
        first_position=a.first_position,
        uncounted_id=a.uncounted_id,
        reads_all=a.reads_all,
    )
    runner = make_encoder_runner(encoder, max_rows)
    log.info(
        "%s encoder on %s in %s by %s; pairs of at most %d tokens, forwards of at most %d",
        a.family, on, precision, type(runner).__name__, a.context_length, max_rows,
    )  # fmt: skip
    facts = CheckpointFacts(
        a.vocab_size, a.context_length, is_classifier=True, is_encoder=True, token_types=a.token_types
    )
    computation = Computation(runner, head, on)
    return Scorer(computation, facts, PairPacking(max_batch_tokens, rules))


def plan_pairs(
    place: str, a: EncoderArchitecture, number_bytes: int, weights: int, max_rows: int
) -> MemoryPlan:
    """Plan an encoder's memory for forwards of `max_rows` tokens, with activations of `number_bytes`."""
    on_cuda = place.startswith("cuda")
    # The residual stream and sums with it are float32.
    stream = 3 * 4 * a.hidden_size
    attention = 5 * a.hidden_size * number_bytes + (6 * 4 * a.hidden_size if a.rope_kinds else 0)
    mlp = (3 if a.gated else 2) * a.intermediate_size * number_bytes + a.hidden_size * number_bytes
    positions = 2 * a.heads * a.relative_positions
    attention += positions * number_bytes if on_cuda else 0
    activations = max_rows * (stream + max(attention, mlp)) + (0 if on_cuda else CPU_ATTENTION_BYTES)
    projected = a.layers * positions * a.head_dim * number_bytes
    of_repeated = a.layers * 2 * (a.heads - (a.kv_heads or a.heads)) * a.head_dim
    repeated = of_repeated * (a.hidden_size + 1) * number_bytes
    outputs = max_rows * a.hidden_size * (4 + number_bytes) if on_cuda else 0
    settings = ("MAX_BATCH_TOKENS", "MAX_CONTEXT")
    return MemoryPlan(
        place,
        (
            MemoryLine("weights", weights + projected + repeated),
            MemoryLine("activations", activations, settings),
            MemoryLine("outputs of CUDA graphs", outputs, settings),
            MemoryLine("kernels and libraries", CUDA_BYTES if on_cuda else PROCESS_BYTES),
        ),
    )


def make_scorer(
    checkpoint: Path,
    device: str,
    dtype: str,
    max_batch_tokens: int,
    query_cache_bytes: int | None,
    max_context: int | None,
    resources: ServerResources,
    leader: Leader | None = None,
) -> Scorer:
    """Load a decoder's or an encoder's scorer; on several ranks an encoder is an `UnsupportedCheckpoint`."""
    if not read_facts(checkpoint).is_encoder:
        return load_decoder_scorer(
            checkpoint, device, dtype, max_batch_tokens, query_cache_bytes, max_context, resources, leader
        )
    if leader is not None and leader.rank.shard.ranks > 1:
        raise UnsupportedCheckpoint("encoders compute on one device: leave TENSOR_PARALLEL unset")
    return load_encoder_scorer(checkpoint, device, dtype, max_batch_tokens, max_context, resources)


def _token_types(checkpoint: Path) -> tuple[int, int]:
    """Read the token types that the checkpoint's tokenizer gives to query and item."""
    if not has_tokenizer(checkpoint):
        return 0, 1
    template = load_tokenizer(checkpoint, pairs=True).pair
    assert template is not None
    return template.token_types
