"""A checkpoint's tokenizer, opened up so that texts can be encoded in parts and many at a time."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from hiscore.tokenization.panics import panics_raised
from hiscore.tokenization.safe_splits import has_safe_cuts

# Different in length, script and first character; nothing in them is special to any tokenizer.
PROBES = ("a", " b c", "Is 12 a number?\n", "你好")


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and what is known of it.

    backend: truncation and padding are off.
    wraps: special tokens are simply put around a text: ``prefix`` before and ``suffix`` behind. If not, only whole
        texts can be encoded, and prefix and suffix are empty.
    safe_cuts: the cuts of `hiscore.tokenization.safe_splits` may be used.
    """

    backend: Tokenizer
    wraps: bool
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    safe_cuts: bool

    def encode(self, texts: list[str], labels: list[str]) -> tuple[list[list[int]], list[list[int]]]:
        """The ids of all texts and labels, in one call that uses the machine's cores.

        Labels never get special tokens; texts get them here only if the tokenizer does not wrap.

        Raises:
            Panic: the library has given up on one of them.
        """
        if self.wraps:
            ids = self._encode(texts + labels, special=False)
            return ids[: len(texts)], ids[len(texts) :]
        return self._encode(texts, special=True), self._encode(labels, special=False)

    def _encode(self, texts: list[str], special: bool) -> list[list[int]]:
        with panics_raised():
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=special)
        return [encoding.ids for encoding in encodings]


def load_tokenizer(checkpoint: Path) -> TextTokenizer:
    """Load the tokenizer of a local Hugging Face style directory; no network, no remote code.

    Raises:
        ValueError: there is no fast tokenizer, or transformers does more to a text than that one's pipeline.
    """
    tokenizer = AutoTokenizer.from_pretrained(
        checkpoint, use_fast=True, trust_remote_code=False, local_files_only=True
    )
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(f"{checkpoint}: {name} has no fast tokenizer (tokenizer.json)")
    truth = [tokenizer(probe)["input_ids"] for probe in PROBES]
    backend: Tokenizer = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    if [encoding.ids for encoding in backend.encode_batch_fast(PROBES)] != truth:
        raise ValueError(f"{checkpoint}: {name} gives other ids than its own fast tokenizer")
    wrapping = find_wrapping(backend)
    prefix, suffix = wrapping or ((), ())
    return TextTokenizer(
        backend,
        wraps=wrapping is not None,
        prefix=prefix,
        suffix=suffix,
        safe_cuts=wrapping is not None and has_safe_cuts(backend),
    )


def find_wrapping(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The special tokens before and behind every text, or None if they are not simply put around it."""
    special = backend.encode("").ids
    bare = [encoding.ids for encoding in backend.encode_batch_fast(PROBES, add_special_tokens=False)]
    whole = [encoding.ids for encoding in backend.encode_batch_fast(PROBES)]
    for split in range(len(special), -1, -1):
        prefix, suffix = special[:split], special[split:]
        if whole == [prefix + core + suffix for core in bare]:
            return tuple(prefix), tuple(suffix)
    return None
