"""A checkpoint's config.json, read by transformers: what it refuses, and what it does not look at."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hiscore.models.auto_classes import AutoConfig
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.rules import Config
from hiscore.models.stored_config import stored_config
from hiscore.models.text_towers import TEXT_TOWERS

T = TypeVar("T")


def read_config(checkpoint: Path) -> Any:
    """Read transformers' config of a checkpoint, or raise `UnsupportedCheckpoint` if transformers refuses it."""
    try:
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
        stored = stored_config(checkpoint)
        if quantised := stored.get("quantization_config"):
            config.quantization_config = quantised
        if modular := stored.get("modular"):
            config.architectures = stored["architectures"]
            config.num_labels, config.modular = len(stored["id2label"]), modular
        if getattr(of_texts(config), "rope_parameters", None):
            # Its models do so before they compute frequencies: an original context beside rope_parameters replaces
            # that in them, under older names of longrope only now.
            of_texts(config).standardize_rope_params()
        return config
    # Whatever a value that is none leads to in transformers' classes.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UnsupportedCheckpoint(f"transformers refuses config.json: {reason}") from error


@contextmanager
def malformed_refused() -> Iterator[None]:
    """Refuse a config if translating it fails: transformers checks only the types of the keys that it declares."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UnsupportedCheckpoint(f"config.json is malformed: {error!r}") from error


def translated(
    checkpoint: Path, unserved: Callable[[Config], str | None], translate: Callable[[Any], T]
) -> tuple[T, Any]:
    """Read transformers' config and what a family makes of it, or raise `UnsupportedCheckpoint`."""
    if reason := unserved(stored_config(checkpoint)):
        raise UnsupportedCheckpoint(reason)
    config = read_config(checkpoint)
    # Once more with what transformers made of it: defaults, and keys that replace others.
    if reason := unserved(config.to_dict()):
        raise UnsupportedCheckpoint(reason)
    with malformed_refused():
        return translate(config), config


def check_sizes(sizes: Mapping[str, Any]) -> None:
    """Raise `UnsupportedCheckpoint` if a size is no positive whole number."""
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise UnsupportedCheckpoint(f"{name} is {size!r}, not a positive whole number")


def of_texts(config: Any) -> Any:
    return config.get_text_config() if config.model_type in TEXT_TOWERS else config
