"""The scheduler's decisions for the engine: one iteration's launches."""

from dataclasses import dataclass, field

from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import DecodeBatch, Growth, PrefillChunk
from hiscore.decoding.pools.block_pool import Release
from hiscore.decoding.sequence import Sequence


@dataclass
class Schedule:
    """One iteration to launch, in this order. A batch is None if nothing is in it.

    Attributes:
        resumed: Preempted sequences to copy back into staging.
        fetched: Sequences that start with a prefix that was found, and what to copy.
        completed: Sequences of `prefilling` whose prompt ends in this forward, a row of `sampling` each.
        admitted: Sequences that start to decode.
    """

    releases: list[Release] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)
    stepped: list[Sequence] = field(default_factory=list)
    decode_batch: DecodeBatch | None = None
    resumed: list[Sequence] = field(default_factory=list)
    fetched: list[tuple[Sequence, Prefix]] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    completed: list[Sequence] = field(default_factory=list)
    sampling: SamplingBatch | None = None
    admitted: list[Sequence] = field(default_factory=list)
