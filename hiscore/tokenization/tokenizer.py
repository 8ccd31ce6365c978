"""A checkpoint's tokenizer, opened up so that texts can be encoded in parts and many at a time."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from hiscore.models.auto_classes import AutoTokenizer
from hiscore.tokenization.file import read_backend
from hiscore.tokenization.pair_template import PROBES, PairTemplate, find_pair_template
from hiscore.tokenization.panics import Panic, panics_raised
from hiscore.tokenization.safe_splits import split_rule
from hiscore.tokenization.split_rule import SplitRule
from hiscore.tokenization.text_encoder import TextEncoder
from hiscore.tokenization.token_length import max_bytes_per_token

log = logging.getLogger(__name__)

# What transformers' classes have been seen to do in their own way: spaces, case, accents, normal forms, marks.
TELLING = (
    *PROBES,
    "  Two  SPACES,\ta naïve ﬁ “quote” … and don't.\n\n x ",
    "Ｆｕｌｌ\u00a0ｗｉｄｔｈ ① \u200b\u3000e\u0301 1234567 ▁ ##s",
    "これは果物ですか。สวัสดี 👩\u200d👧 苹果",
)
MOST_ADDED = 64


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

    A text that transformers' own class reads otherwise than tokenizer.json is named in the log.

    Raises:
        ValueError: There is no tokenizer.json, or it joins pairs of texts by more than special tokens.
    """
    backend = read_backend(checkpoint)
    inputs = _inputs_of_transformers(checkpoint, backend, required=pairs)
    pair = find_pair_template(backend, "token_type_ids" in inputs) if pairs else None
    affixes = find_affixes(backend)
    if pairs and (pair is None or affixes is None):
        raise ValueError(f"{checkpoint} joins pairs of texts by more than special tokens around each")
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


def _inputs_of_transformers(checkpoint: Path, backend: Tokenizer, required: bool) -> Sequence[str]:
    """Name the inputs that transformers' own class would give a model, after a look at its ids for some texts.

    Without such a class the inputs are none, unless they are `required`: then its error is raised.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        if required:
            raise
        log.warning("transformers cannot load this tokenizer: tokenizer.json is used as it is (%s)", error)
        return ()
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    added |= set(tokenizer.get_added_vocab())
    for text in (*TELLING, "".join(f" a{each} b{each}" for each in sorted(added)[:MOST_ADDED])):
        with suppress(Panic), panics_raised():
            ours, theirs = backend.encode(text).ids, tokenizer(text)["input_ids"]
            if ours != theirs:
                log.warning(
                    "tokenizer.json and transformers' %s differ: %.60r has %d tokens and %d; every model and "
                    "route goes by tokenizer.json",
                    type(tokenizer).__name__,
                    text,
                    len(ours),
                    len(theirs),
                )
                break
    inputs: Sequence[str] = tokenizer.model_input_names
    return inputs


def find_affixes(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The special tokens before and after every text, or None if there are others, or no tokens for some text."""
    special = backend.encode("").ids
    try:
        with panics_raised():
            bare = [encoding.ids for encoding in backend.encode_batch_fast(PROBES, add_special_tokens=False)]
            whole = [encoding.ids for encoding in backend.encode_batch_fast(PROBES)]
    except Panic:
        return None
    for split in range(len(special), -1, -1):
        prefix, suffix = special[:split], special[split:]
        if whole == [prefix + core + suffix for core in bare]:
            return tuple(prefix), tuple(suffix)
    return None
