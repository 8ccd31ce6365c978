"""Settings that the server and its models share, each declared here and nowhere else.

A group is what one model or several need together; `hiscore.settings.models` and `hiscore.settings.serve` combine
groups by inheritance. Fields keep their names everywhere: ``max_items`` is the variable ``MAX_ITEMS``.
"""

import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from hiscore.logs import LogFormat
from hiscore.settings.words import AUTO, AUTO_NUMBER, OFF_NUMBER, OFF_TEXT, Word

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "fp8"]
Selector = Literal["auto", "dense", "quest", "dsa"]
PrefixCaching = Literal["auto"] | bool
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
BOOLEAN = TypeAdapter(bool)
Port = Annotated[int, Ge(0), Le(65_535)]
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RESERVED_NAMES = ("base", "score", "classify", "tokenizer", "scorer", "decode")
MAX_ADAPTERS = 2**11 - 1
"""A row of a forward says in 11 bits by which one it is computed (`scoring.requests.adapters`)."""
MAX_TEXT_BYTES = 8 * 2**20
"""Bytes of UTF-8 in one prompt of `decode`; a scoring call may have more (`Limits`)."""


class Settings(BaseModel):
    """Base of all groups: unknown names are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    section: ClassVar[str] = ""
    """Heading in docs/settings.md."""


class CheckpointName(Settings):
    """The checkpoint."""

    section = "Model and device"

    model: str = Field(
        default=DEFAULT_MODEL,
        description="the default model, a local Hugging Face style directory, or a hub id (`org/name`)",
    )


class Computing(Settings):
    """The numbers that `scorer` and `decode` compute with, and the devices over which one model is divided."""

    section = "Model and device"

    dtype: Dtype = Field(
        default="auto",
        description="auto: `float32` on the CPU, `bfloat16` on a GPU, in the scorer `fp8` for what a checkpoint "
        "stores so. `fp8`: the scorer's projections in 8 bits, in decode what DeepSeek-V3.2 stores so "
        "(GPUs of compute capability 8.9 and newer; [what it costs](scoring.md#fp8))",
    )
    tensor_parallel: PositiveInt = Field(
        default=1,
        description="GPUs, or processes on the CPU, that compute one model together "
        "([sizing](tensor-parallel.md)). There are as many instances as groups of so many visible GPUs",
    )


class ContextLimit(Settings):
    """The longest sequence, for which every pool is sized."""

    section = "Limits of one call"

    max_context: Annotated[PositiveInt | None, AUTO] = Field(
        default=None,
        description="tokens of the query and one item in scoring, of prompt and output in decoding; all pools are "
        "sized for it ([memory](memory.md)). auto: 32,768, or the checkpoint's context if that is smaller",
    )


class Limits(ContextLimit):
    """Settings that limit one scoring call; anything larger is refused before any work is done on it."""

    max_items: PositiveInt = Field(default=10_000, description="items")
    max_labels: ClassVar[int] = 1_000
    """Labels of a call, or of an item that has its own: no deployment sets that."""
    max_call_tokens: PositiveInt = Field(
        default=4_000_000,
        description="tokens, the query counted once. Four times as many may wait and run in the scorer "
        "before UNAVAILABLE",
    )

    @property
    def max_text_bytes(self) -> int:
        """Bytes of UTF-8 in query, items and labels."""
        return max(MAX_TEXT_BYTES, 2 * self.max_call_tokens)


class QueueSettings(Settings):
    """Bounds on waiting calls."""

    section = "Queues"

    max_queue: PositiveInt = Field(default=1_024, description="waiting calls per model before UNAVAILABLE")
    queue_timeout_s: PositiveInt = Field(
        default=600, description="seconds a call may wait; a client may ask for less"
    )


class LogSettings(Settings):
    """The form of log lines."""

    section = "Logs and traces"

    log_format: LogFormat = Field(
        default="text", description="hiscore's own log lines: text for people, or one JSON object per line"
    )


class ScoringSettings(Settings):
    """Batches and the cache of queries of `scorer`."""

    section = "Scoring"

    max_batch_tokens: Annotated[Annotated[int, Ge(32)] | None, AUTO] = Field(
        default=None,
        description="tokens per batch and per forward. auto: 16,384 on a GPU, 2,048 on the CPU, where those "
        "take seconds",
    )
    query_cache_bytes: Annotated[NonNegativeInt | None, AUTO, OFF_NUMBER] = Field(
        default=None,
        description="prefix cache: keys and values of recent queries, on each GPU of a scorer instance. "
        "auto: 1 GiB, at most an eighth of its free memory. The pool is larger where a call that takes several "
        "forwards needs it ([memory](memory.md))",
    )


class AdapterSettings(Settings):
    """Adapters of the checkpoint."""

    section = "Scoring"

    adapters: Annotated[str, OFF_TEXT] = Field(
        default="",
        description="LoRA adapters that calls may name, `name=directory,...`, each as PEFT wrote it for this "
        "checkpoint ([adapters](scoring.md#adapters))",
    )

    @field_validator("adapters")
    @classmethod
    def _names_directories(cls, adapters: str) -> str:
        found: dict[str, Path] = {}
        for each in filter(None, map(str.strip, adapters.split(","))):
            name, _, directory = each.partition("=")
            if not ADAPTER_NAME.fullmatch(name) or name in RESERVED_NAMES:
                raise ValueError(f"must be name=directory,...: '{name}' cannot be a name")
            if name in found or not directory or not Path(directory).is_dir():
                raise ValueError(f"must give '{name}' one directory: '{directory}' is there twice, or none")
            found[name] = Path(directory).resolve()
        if len(found) > MAX_ADAPTERS:
            raise ValueError(f"must name at most {MAX_ADAPTERS} adapters")
        return ",".join(f"{name}={directory}" for name, directory in found.items())

    @property
    def adapter_directories(self) -> dict[str, Path]:
        """Directory of each adapter by name, in order."""
        pairs = (each.split("=", 1) for each in self.adapters.split(",") if each)
        return {name: Path(directory) for name, directory in pairs}


class SamplingSettings(Settings):
    """Sampling of `decode` where a request does not say."""

    section = "Decoding"

    generation_config: Annotated[Literal["off", "checkpoint"], Word("none", "off")] = Field(
        default="off",
        description="defaults of `temperature`, `top_k`, `top_p`, `min_p` and `repetition_penalty`: `off` is "
        "greedy, `checkpoint` takes what generation_config.json suggests",
    )


class CacheSettings(ContextLimit):
    """Keys and values of `decode`: all of them on the host, a few on the device."""

    section = "Decoding"

    # Before the sizes: their checks look at it.
    selector: Selector = Field(
        default="auto",
        description="which tokens a step attends to: `dense` all of them; `quest` and `dsa` select. "
        "auto: `dsa` if the checkpoint has an indexer; else all of them while the keys and values of what runs "
        "fit the device, and when they do not, the longest sequences select as under `quest`",
    )
    sparse_top_k: PositiveInt = Field(default=2_048, description="tokens selected per step and sequence")
    device_buffer_size: PositiveInt = Field(
        default=4_096,
        validate_default=True,
        description="tokens of a sequence kept on the device, at least `SPARSE_TOP_K`",
    )
    prefix_cache: PrefixCaching = Field(
        default="auto",
        description="keep what sequences leave in the host pool until its memory is needed, so that prompts that "
        "begin alike, as the turns of a conversation, prefill only what is new; `off`: nothing is kept. auto: "
        "`on`. Nothing is kept of a checkpoint with "
        "[layers that keep a window only](memory.md#layers-with-a-sliding-window). "
        "[What callers learn](security.md#what-callers-can-learn-about-each-other) of each other's prompts",
    )
    backup_ring: PositiveInt = Field(
        default=32,
        validate_default=True,
        description="newest tokens whose offload may still be running, at most `SPARSE_TOP_K`",
    )
    host_kv_bytes: Annotated[NonNegativeInt, AUTO_NUMBER] = Field(
        default=0, description="KV pool on the host, per GPU; auto: from the machine's memory"
    )
    device_kv_bytes: Annotated[NonNegativeInt, AUTO_NUMBER] = Field(
        default=0, description="KV pool on the device; auto: from the device's memory"
    )
    max_streams: Annotated[NonNegativeInt, AUTO_NUMBER] = Field(
        default=0, description="sequences that run at once; auto: 64 on a GPU, 32 on a CPU"
    )

    @field_validator("prefix_cache", mode="before")
    @classmethod
    def _is_auto_or_boolean(cls, value: object) -> object:
        # In one message: each of the alternatives would complain by itself.
        try:
            if value != "auto":
                BOOLEAN.validate_python(value)
        except ValidationError:
            raise ValueError("must be auto, on or off") from None
        return value

    @field_validator("device_buffer_size")
    @classmethod
    def _holds_what_is_selected(cls, size: int, info: ValidationInfo) -> int:
        top_k = info.data.get("sparse_top_k", 0)
        if info.data.get("selector") != "dense" and size < top_k:
            raise ValueError(f"must be at least SPARSE_TOP_K, which is {top_k}")
        return size

    @field_validator("backup_ring")
    @classmethod
    def _is_always_selected(cls, ring: int, info: ValidationInfo) -> int:
        top_k = info.data.get("sparse_top_k", ring)
        if info.data.get("selector") != "dense" and ring > top_k:
            raise ValueError(
                f"must be at most SPARSE_TOP_K, which is {top_k}: the newest always take room in the buffer"
            )
        return ring
