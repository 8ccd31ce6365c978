"""Facts about a checkpoint before anything of it is loaded: its kind, vocabulary and longest sequence."""

from collections.abc import Mapping
from pathlib import Path

from hiscore.layers.rope import context_length, original_context
from hiscore.models.adapter_files import read_adapters
from hiscore.models.config_file import malformed_refused, of_texts, read_config
from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.families import is_read_whole
from hiscore.models.family import guard_labels, is_classifier, scores_tokens
from hiscore.models.stored_config import stored_config
from hiscore.models.support import CheckpointFacts, context_limit, read_step_id


def generation_context(checkpoint: Path, max_context: int | None) -> int | None:
    """Return the setting MAX_CONTEXT for generation: with longrope the original context at most.

    A sequence that grows beyond it would have to be computed again from its first token, as transformers does.
    """
    config = of_texts(read_config(checkpoint))
    original = original_context(config)
    return (
        max_context if original is None else min(original, context_limit(context_length(config), max_context))
    )


def read_facts(
    checkpoint: Path, max_context: int | None = None, adapters: Mapping[str, Path] | None = None
) -> CheckpointFacts:
    """Sizes and kind of any checkpoint that transformers knows, served or not."""
    whole = read_config(checkpoint)
    config = of_texts(whole)
    encoder = ENCODER_FAMILIES.get(config.model_type)
    with malformed_refused():
        context = encoder.context_length(config) if encoder else context_length(config)
    return CheckpointFacts(
        vocab_size=config.vocab_size,
        context_length=context_limit(context, max_context),
        is_classifier=is_classifier(whole.architectures),
        is_encoder=encoder is not None or is_read_whole(stored_config(checkpoint)),
        joins_pairs=encoder is not None,
        token_types=getattr(config, "type_vocab_size", 0) if encoder else 0,
        scores_tokens=scores_tokens(whole.architectures),
        step_id=read_step_id(checkpoint),
        is_guard=bool(guard_labels(whole.to_dict())),
        labels=whole.num_labels if is_classifier(whole.architectures) else 0,
        adapters=read_adapters(adapters or {}),
    )
