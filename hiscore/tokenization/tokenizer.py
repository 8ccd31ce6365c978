"""A checkpoint's tokenizer, opened up so that texts can be encoded in parts and many at a time."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from hiscore.models.auto_classes import AutoTokenizer
from hiscore.tokenization.pair_template import PROBES, PairTemplate, find_pair_template
from hiscore.tokenization.panics import panics_raised
from hiscore.tokenization.safe_splits import split_rule
from hiscore.tokenization.split_rule import SplitRule
from hiscore.tokenization.text_encoder import TextEncoder
from hiscore.tokenization.token_length import max_bytes_per_token


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and what is known of it.

    Attributes:
        encoder: Gives the ids of texts without special tokens.
        adds_affixes: Special tokens are only a fixed prefix and suffix of every text. Otherwise only whole texts
            can be encoded, and prefix and suffix are empty.
        splits: The rule by which texts can be split; None: they cannot.
        bytes_per_token: Bytes of text that one token stands for at most; None if that is not known.
        pair: The template that joins an encoder's query and item; None: they are one text.
    """

    backend: Tokenizer
    encoder: TextEncoder
    adds_affixes: bool
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    splits: SplitRule | None
    pair: PairTemplate | None = None
    bytes_per_token: int | None = None

    def encode(self, texts: list[str], labels: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Encode texts and labels, on several cores; texts alone get special tokens, unless these are affixes.

        Raises:
            Panic: The library gave up on one of them.
        """
        if self.adds_affixes:
            ids = self.encoder.encode(texts + labels)
            return ids[: len(texts)], ids[len(texts) :]
        return self._encode_special(texts), self.encoder.encode(labels)

    def encode_whole(self, text: str, special: bool) -> list[int]:
        """Encode one text, with the checkpoint's special tokens around it if `special`.

        Raises:
            Panic: The library gave up on the text.
        """
        if special and not self.adds_affixes:
            (ids,) = self._encode_special([text])
            return ids
        (ids,) = self.encoder.encode([text])
        return [*self.prefix, *ids, *self.suffix] if special else ids

    def _encode_special(self, texts: list[str]) -> list[list[int]]:
        with panics_raised():
            encodings = self.backend.encode_batch_fast(texts)
        return [encoding.ids for encoding in encodings]


def load_tokenizer(checkpoint: Path, pairs: bool = False) -> TextTokenizer:
    """Load the tokenizer of a local Hugging Face style directory, with `pairs` an encoder's; no remote code.

    Raises:
        ValueError: There is no fast tokenizer, or transformers does more to a text than the fast tokenizer does.
    """
    tokenizer = AutoTokenizer.from_pretrained(
        checkpoint, use_fast=True, trust_remote_code=False, local_files_only=True
    )
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(f"{checkpoint}: {name} has no fast tokenizer (tokenizer.json)")
    pair = find_pair_template(tokenizer) if pairs else None
    expected = [tokenizer(probe)["input_ids"] for probe in PROBES]
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    if [encoding.ids for encoding in backend.encode_batch_fast(PROBES)] != expected:
        raise ValueError(f"{checkpoint}: {name} gives other ids than its own fast tokenizer")
    affixes = find_affixes(backend)
    if pairs and (pair is None or affixes is None):
        raise ValueError(f"{checkpoint}: {name} joins pairs of texts by more than special tokens around each")
    prefix, suffix = affixes or ((), ())
    return TextTokenizer(
        backend,
        TextEncoder(backend),
        adds_affixes=affixes is not None,
        prefix=prefix,
        suffix=suffix,
        splits=None if affixes is None else split_rule(backend),
        pair=pair,
        bytes_per_token=max_bytes_per_token(backend),
    )


def find_affixes(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The special tokens before and after every text, or None if there are others."""
    special = backend.encode("").ids
    bare = [encoding.ids for encoding in backend.encode_batch_fast(PROBES, add_special_tokens=False)]
    whole = [encoding.ids for encoding in backend.encode_batch_fast(PROBES)]
    for split in range(len(special), -1, -1):
        prefix, suffix = special[:split], special[split:]
        if whole == [prefix + core + suffix for core in bare]:
            return tuple(prefix), tuple(suffix)
    return None
