"""The scorer of encoders: every item makes a pair with the query, and nothing is shared between pairs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hiscore.device.copies import free_bytes, memory_of
from hiscore.models.division import undividable
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.encoders.both_ways import BothWays, read_both_ways
from hiscore.models.encoders.encoder import Encoder, read_encoder_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.facts import read_facts
from hiscore.models.families import family_of, is_read_whole
from hiscore.models.family import DsaFamily
from hiscore.models.modular_head import head_bytes
from hiscore.models.planned_weights import planned_bytes
from hiscore.models.stored_config import stored_config
from hiscore.models.support import has_tokenizer, unscorable
from hiscore.parallel.rank import Leader
from hiscore.prefill.encoder_runner import make_encoder_runner
from hiscore.scoring.computation import Computation
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.latent_scorer import load_latent_scorer
from hiscore.scoring.memory import CPU_ATTENTION_BYTES, CUDA_BYTES, PROCESS_BYTES
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.packing.pairs import PairRules, as_pairs, pack_pairs
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.precision import DTYPES, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.scorer import Packing, Scorer
from hiscore.server.plan import MemoryLine, MemoryPlan
from hiscore.server.server_resources import ServerResources
from hiscore.tokenization.tokenizer import load_tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairPacking(Packing):
    """Packs an encoder's prompts: items with the query, nothing cached."""

    rules: PairRules

    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        return as_pairs(prompt)

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
    """
    if dtype == "fp8":
        raise ValueError(f"DTYPE is {dtype}: encoders are served in float32 and bfloat16")
    on = use_device(device)
    precision = pick_dtype(dtype, on)
    warn_if_slow(precision, on)
    numbers = DTYPES[precision]
    if of_decoder := is_read_whole(stored_config(checkpoint)):
        a = read_both_ways(checkpoint, max_context)
    else:
        a, _ = read_encoder_architecture(checkpoint, max_context)
    max_rows = max(max_batch_tokens, a.context_length)
    resources = resources or ServerResources()
    # All memory is claimed before any is allocated.
    resources.ledger.free(memory_of(on), lambda: free_bytes(on))
    make = BothWays if of_decoder else Encoder
    weights = planned_bytes(lambda device: make(checkpoint, device, numbers, max_context).weights)
    weights += head_bytes(checkpoint) if a.modular else 0
    plan = plan_pairs(memory_of(on), a, numbers.itemsize, weights, max_rows)
    resources.ledger.claim(resources.owner(on), plan)
    encoder = make(checkpoint, on, numbers, max_context)
    encoder.after_layer = resources.progress
    rules = PairRules(
        token_types=_token_types(checkpoint) if a.token_types > 1 else (0, 0),
        first_position=a.first_position,
        uncounted_id=a.uncounted_id,
        reads=a.reads,
    )
    runner = make_encoder_runner(encoder, max_rows)
    log.info(
        "%s encoder on %s in %s by %s; pairs of at most %d tokens, forwards of at most %d",
        a.family, on, precision, type(runner).__name__, a.context_length, max_rows,
    )  # fmt: skip
    computation = Computation(runner, encoder.classifier(), on)
    packing = PairPacking(max_batch_tokens, QueryCache(0, 0, caching=False), rules)
    return Scorer(computation, read_facts(checkpoint, max_context), packing)


def plan_pairs(
    place: str, a: EncoderArchitecture, number_bytes: int, weights: int, max_rows: int
) -> MemoryPlan:
    """Plan an encoder's memory for forwards of `max_rows` tokens, with activations of `number_bytes`."""
    on_cuda = place.startswith("cuda")
    # The residual stream and sums with it are float32.
    stream = 3 * 4 * a.hidden_size
    attention = 5 * a.attended * number_bytes + (6 * 4 * a.attended if a.rope_kinds else 0)
    mlp = (3 if a.gated else 2) * a.intermediate_size * number_bytes + a.hidden_size * number_bytes
    positions = 2 * a.heads * a.relative_positions
    attention += positions * number_bytes if on_cuda else 0
    activations = max_rows * (stream + max(attention, mlp)) + (0 if on_cuda else CPU_ATTENTION_BYTES)
    outputs = max_rows * (4 * a.hidden_size + a.attended * number_bytes) if on_cuda else 0
    settings = ("MAX_BATCH_TOKENS", "MAX_CONTEXT")
    return MemoryPlan(
        place,
        (
            MemoryLine("weights", weights),
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
    adapters: Mapping[str, Path] | None = None,
) -> Scorer:
    """Load a scorer, or raise `UnsupportedCheckpoint`, also for devices and ranks that do not compute it."""
    config = stored_config(checkpoint)
    on, ranks = (leader.rank.device, leader.rank.shard.ranks) if leader else (use_device(device), 1)
    if reason := unscorable(config, on.type == "cuda", ranks) or undividable(config, ranks):
        raise UnsupportedCheckpoint(reason)
    latent = isinstance(family_of(config), DsaFamily)
    if not latent and not read_facts(checkpoint).is_encoder:
        return load_decoder_scorer(
            *(checkpoint, device, dtype, max_batch_tokens, query_cache_bytes, max_context, resources, leader),
            adapters=adapters,
        )
    if adapters:
        raise UnsupportedCheckpoint(
            f"ADAPTERS are not applied to {'latent attention' if latent else 'an encoder'}: set ADAPTERS=off"
        )
    if latent:
        return load_latent_scorer(
            checkpoint, device, dtype, max_batch_tokens, query_cache_bytes, max_context, resources
        )
    return load_encoder_scorer(checkpoint, device, dtype, max_batch_tokens, max_context, resources)


def _token_types(checkpoint: Path) -> tuple[int, int]:
    if not has_tokenizer(checkpoint):
        return 0, 1
    template = load_tokenizer(checkpoint, pairs=True).pair
    assert template is not None
    return template.token_types
