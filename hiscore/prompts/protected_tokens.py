"""The tokens of a tokenizer that no caller's text may become, and their pieces in the model's vocabulary."""

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from hiscore.tokenization.token_bytes import BYTE_TOKEN

PIPED = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)


def is_protected(token: dict[str, Any], templates: str) -> bool:
    """Check whether an added token is special, like ``<|name|>``, or in brackets and part of a template."""
    content: str = token["content"]
    if token["special"] or PIPED.fullmatch(content):
        return True
    return bool(MARKUP.fullmatch(content)) and content in templates


def rename_pieces(model: dict[str, Any], names: dict[str, str]) -> None:
    """Give protected tokens (`names`) their secret names in tokenizer.json's `model`, where text could spell them.

    The merges of BPE name their results, so its vocabulary stays as it is.
    """
    kept = BYTE_TOKEN.fullmatch if model.get("byte_fallback") else lambda content: None
    renamed = {content: name for content, name in names.items() if not kept(content)}
    if model["type"] == "Unigram":
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in model["vocab"]]
    elif model["type"] in ("WordPiece", "WordLevel"):
        model["vocab"] = {renamed.get(piece, piece): number for piece, number in model["vocab"].items()}
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])


def ids_of_protected(tokenizer: Tokenizer, protected: Sequence[str], model: dict[str, Any]) -> dict[int, str]:
    """Map ids of the model's own vocabulary to protected tokens, but for those that any text may give."""
    found = {tokenizer.token_to_id(content): content for content in protected}
    ordinary = {model.get("unk_token")}
    if model["type"] == "Unigram" and model.get("unk_id") is not None:
        ordinary.add(model["vocab"][model["unk_id"]][0])
    if model.get("byte_fallback"):
        ordinary |= {content for content in protected if BYTE_TOKEN.fullmatch(content)}
    return {
        number: content for number, content in found.items() if number is not None and content not in ordinary
    }
