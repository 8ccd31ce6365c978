"""The scorer of encoders: every item makes a pair with the query, and nothing is shared between pairs."""

import logging
from collections.abc import Sequence
from pathlib import Path

from hiscore.device import free_bytes, memory_of
from hiscore.layers.lm_head import LMHead
from hiscore.memory.ledger import Ledger
from hiscore.memory.plan import MemoryLine, MemoryPlan
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.encoders.encoder import Encoder, read_encoder_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.facts import read_facts
from hiscore.models.server_resources import ServerResources
from hiscore.models.support import CheckpointFacts, has_tokenizer
from hiscore.models.weight_bytes import weight_bytes
from hiscore.parallel.rank import Leader
from hiscore.prefill.encoder_runner import make_encoder_runner
from hiscore.scoring.computation import Computation
from hiscore.scoring.memory import CPU_ATTENTION_BYTES, CUDA_BYTES, PROCESS_BYTES
from hiscore.scoring.packing import Batch
from hiscore.scoring.pairs import PairRules, as_pairs, pack_pairs
from hiscore.scoring.precision import DTYPES, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.prefix_cache import PrefixCache
from hiscore.scoring.request import MultiItemPrompt
from hiscore.scoring.scorer import Scorer
from hiscore.tokenization.tokenizer import load_tokenizer

log = logging.getLogger(__name__)


class PairScorer(Scorer):
    """One encoder on one device."""

    def __init__(
        self,
        checkpoint: Path,
        device: str = "auto",
        dtype: str = "auto",
        max_batch_tokens: int = 16_384,
        max_context: int | None = None,
        resources: ServerResources | None = None,
    ) -> None:
        """Plan the memory, load a checkpoint and, on CUDA, capture graphs.

        Args:
            checkpoint: Its directory.
            device: As for `torch.device`; "auto": a GPU if there is one.
            dtype: float32 or bfloat16; "auto": bfloat16 on a GPU, else float32.
            max_batch_tokens: Tokens of one forward; a longer pair has a forward of its own.
            max_context: Tokens of a pair at most; None: see `context_limit`.
            resources: What the model shares with its server; None: there is no server.

        Raises:
            UnsupportedCheckpoint: The encoder cannot compute the checkpoint.
            MemoryExceeded: The device has no room for it.
            ValueError: dtype is fp8, or `max_context` exceeds the checkpoint's context.
        """
        if dtype == "fp8":
            raise ValueError(f"DTYPE is {dtype}: encoders are served in float32 and bfloat16")
        self.device = use_device(device)
        precision = pick_dtype(dtype, self.device)
        warn_if_slow(precision, self.device)
        self.dtype = DTYPES[precision]
        a, _ = read_encoder_architecture(checkpoint, max_context)
        max_rows = max(max_batch_tokens, a.context_length)
        resources = resources or ServerResources()
        self._claim_pairs(checkpoint, a, max_rows, resources.ledger)
        encoder = Encoder(checkpoint, self.device, self.dtype, max_context)
        encoder.after_layer = resources.progress
        self.facts = CheckpointFacts(
            a.vocab_size, a.context_length, is_classifier=True, is_encoder=True, token_types=a.token_types
        )
        head = LMHead(encoder.weights.head.weight, None, encoder.weights.head.bias)
        self._budget = max_batch_tokens
        self._longrope = None
        self._prefix_cache = PrefixCache(0, 0, caching=False)
        self._rules = PairRules(
            token_types=_token_types(checkpoint) if a.token_types > 1 else (0, 0),
            first_position=a.first_position,
            uncounted_id=a.uncounted_id,
            reads_all=a.pooling == "mean",
        )
        runner = make_encoder_runner(encoder, max_rows)
        self.compute_with(Computation(runner, head, is_classifier=True, device=self.device))
        log.info(
            "%s encoder on %s in %s by %s; pairs of at most %d tokens, forwards of at most %d",
            a.family, self.device, precision, type(self.runner).__name__, a.context_length, max_rows,
        )  # fmt: skip

    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        """What is computed for a validated prompt: pairs that hold the query each."""
        return as_pairs(prompt)

    def _pack(self, prompts: Sequence[MultiItemPrompt]) -> Batch:
        return pack_pairs(prompts, self._budget, self._rules)

    def _claim_pairs(self, checkpoint: Path, a: EncoderArchitecture, max_rows: int, ledger: Ledger) -> None:
        """Claim the memory for everything, before any of it is allocated."""
        place, number_bytes = memory_of(self.device), self.dtype.itemsize
        ledger.free(place, lambda: free_bytes(self.device))
        weights = weight_bytes(checkpoint, number_bytes)
        ledger.claim(f"scorer on {self.device}", plan_pairs(place, a, number_bytes, weights, max_rows))


def plan_pairs(
    place: str, a: EncoderArchitecture, number_bytes: int, weights: int, max_rows: int
) -> MemoryPlan:
    """Where an encoder's memory goes.

    Args:
        place: The device.
        a: The checkpoint's architecture.
        number_bytes: Bytes of one number of an activation.
        weights: Bytes.
        max_rows: Tokens of a forward.
    """
    on_cuda = place.startswith("cuda")
    # The residual stream and sums with it are float32.
    stream = 3 * 4 * a.hidden_size
    attention = 5 * a.hidden_size * number_bytes + (6 * 4 * a.hidden_size if a.rope_kinds else 0)
    mlp = (3 if a.gated else 2) * a.intermediate_size * number_bytes + a.hidden_size * number_bytes
    positions = 2 * a.heads * a.relative_positions
    attention += positions * number_bytes if on_cuda else 0
    activations = max_rows * (stream + max(attention, mlp)) + (0 if on_cuda else CPU_ATTENTION_BYTES)
    projected = a.layers * positions * a.head_dim * number_bytes
    outputs = max_rows * a.hidden_size * (4 + number_bytes) if on_cuda else 0
    settings = ("MAX_BATCH_TOKENS", "MAX_CONTEXT")
    return MemoryPlan(
        place,
        (
            MemoryLine("weights", weights + projected),
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
    """The scorer of a checkpoint's kind. See `Scorer` for the arguments; encoders have no cache of queries.

    Raises:
        UnsupportedCheckpoint: An encoder on several ranks.
    """
    if not read_facts(checkpoint).is_encoder:
        return Scorer(
            checkpoint, device, dtype, max_batch_tokens, query_cache_bytes, max_context, resources, leader
        )
    if leader is not None and leader.rank.shard.ranks > 1:
        raise UnsupportedCheckpoint("encoders compute on one device: leave TENSOR_PARALLEL unset")
    return PairScorer(checkpoint, device, dtype, max_batch_tokens, max_context, resources)


def _token_types(checkpoint: Path) -> tuple[int, int]:
    """The token types of query and item, as the checkpoint's tokenizer gives them to a pair."""
    if not has_tokenizer(checkpoint):
        return 0, 1
    template = load_tokenizer(checkpoint, pairs=True).pair
    assert template is not None
    return template.token_types
