"""Rerank requests to token ids: a query and a document in a template, the documents' common beginning shared."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.support import is_classifier, label_names
from hiscore.prompts.chat import (
    ChatTemplate,
    PromptError,
    compiled,
    read_chat_template,
    read_json,
    render,
    special_tokens,
)
from hiscore.prompts.families import FAMILIES, UNKNOWN, FoundFamily, RerankFamily, find_family
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.recipe import Recipe, RecipePart, Source
from hiscore.prompts.shared_beginning import Prompts, share
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tracked_text import TrackedText


class RerankPrompts:
    """Makes the prompts of one checkpoint from a template.

    Args:
        template: The name of a family, the path of a Jinja file, or empty: chosen by the checkpoint.
        labels: Two texts; empty: those that the file names, or else the family's.
        names: The names that the checkpoint is known by, beside that of its directory.

    Raises:
        ValueError: The template or the labels cannot be used.
    """

    def __init__(
        self,
        checkpoint: Path,
        template: str = "",
        labels: Sequence[str] = (),
        is_classifier: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        found, source, labels_by = _choose(checkpoint, template, names)
        self.family, self.remarks = found.family, found.remarks
        self.template = RecipePart(self.family.name, found.source)
        self._chat: ChatTemplate | None = read_chat_template(checkpoint) if self.family.in_chat else None
        self._template = compiled(source)
        self._special_tokens = special_tokens(checkpoint)
        sources = [source, self._chat.source] if self._chat else [source]
        self.tokenizer = PromptTokenizer(checkpoint, sources)
        self.tokenizer.check_own(self.text("a", "b"))
        self.label_ids: Sequence[int] = ()
        if not is_classifier:
            self._find_labels(labels)
            texts = [repr(text) for text in labels or self.family.labels if text]
            self.readout = RecipePart(" against ".join(texts), "setting" if labels else labels_by)

    def _find_labels(self, labels: Sequence[str]) -> None:
        texts = [text for text in labels or self.family.labels if text]
        if self.family.in_chat and not labels:
            texts = [self._answered(text) for text in texts]
        prompt = self.text("a", "b")
        ids, *continued = self.tokenizer.encode([prompt, *(prompt + text for text in texts)])
        for text, longer in zip(texts, continued, strict=True):
            if longer[:-1] != ids:
                raise ValueError(
                    f"the label {text!r} does not add one token to the prompt: set PROMPT_LABELS to two texts "
                    "of one token each, as in PROMPT_LABELS=yes,no"
                )
        self.label_ids = [longer[-1] for longer in continued]
        if len(set(self.label_ids)) < len(texts):
            raise ValueError(f"the labels {texts[0]!r} and {texts[1]!r} are the same token")

    def _answered(self, label: str) -> str:
        """Write a label as the chat template begins an answer with it, in some behind a space."""
        if self._chat is None:
            return f" {label}"  # the answer follows a colon
        question = {"role": "user", "content": "a"}
        with suppress(PromptError):
            prompt = self._chat.render([question])
            answer = {"role": "assistant", "content": label}
            whole = self._chat.render_as_is([question, answer], add_generation_prompt=False)
            before, found, _ = whole.removeprefix(prompt).partition(label)
            if found and whole.startswith(prompt) and not before.strip():
                return before + label
        return label

    def text(self, query: str, document: str, instruction: str | None = None) -> TrackedText:
        """Render the whole prompt for one document."""
        prompt = render(
            self._template,
            query=query,
            document=document,
            instruction=self.family.instruction if instruction is None else instruction,
            **self._special_tokens,
        )
        if self._chat:
            return self._chat.render([{"role": "user", "content": prompt}])
        return prompt + "\nAnswer:" if self.family.in_chat else prompt

    def ids(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> Prompts:
        """Encode the prompts for all documents, each with its own query.

        Raises:
            PromptError: The template fails.
            CannotEncode: A text would become a special token, or the library gives up on one.
        """
        if not documents:
            return Prompts([], [])
        pairs = zip(queries, documents, strict=True)
        once, ids = self.tokenizer.encode_alike([self.text(*pair, instruction) for pair in pairs])
        rest = share(ids)
        return Prompts(once + rest.query, rest.items)

    def characters(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> int:
        """Estimate the characters that `ids` renders and encodes."""
        around = len(self.text("", "", instruction))
        return sum(map(len, queries)) + sum(map(len, documents)) + around * len(documents)


def make_prompts(
    checkpoint: Path, template: str = "", labels: Sequence[str] = (), names: Sequence[str] = ()
) -> tuple[RerankPrompts | PairPrompts, Recipe]:
    """Choose the prompts of a checkpoint, and what is read behind them.

    Raises:
        ValueError: The template or the labels cannot be used, or the checkpoint is scored as none is here.
    """
    config = read_json(checkpoint / "config.json")
    is_encoder = config.get("model_type") in ENCODER_FAMILIES
    classifies = is_encoder or is_classifier(config.get("architectures"))
    if is_encoder and template:
        raise ValueError("PROMPT_TEMPLATE must not be set: an encoder reads no prompt")
    if classifies and not template and (find_family(checkpoint, names) is UNKNOWN or is_encoder):
        of_pair = RecipePart("pair", "files" if is_encoder else "guess")
        return PairPrompts(checkpoint), Recipe(of_pair, *_of_classifier(checkpoint, labels))
    prompts = RerankPrompts(checkpoint, template, labels, classifies, names)
    if classifies:
        readout, column = _of_classifier(checkpoint, labels, prompts.family.labels[0])
        return prompts, Recipe(prompts.template, readout, column, prompts.remarks)
    return prompts, Recipe(prompts.template, prompts.readout, remarks=prompts.remarks)


def _of_classifier(checkpoint: Path, labels: Sequence[str], of_family: str = "") -> tuple[RecipePart, int]:
    """Find the label of a classifier that is relevance, and its index."""
    count = read_json(checkpoint / "config.json").get("num_labels") or 2
    names = label_names(checkpoint) or tuple(f"LABEL_{index}" for index in range(count))
    if len(names) == 1 and not labels:
        return RecipePart("its one label", "files"), 0
    wanted = {label.lower() for label in labels if label} or {"relevant", of_family.lower()}
    found = [index for index, name in enumerate(names) if name.lower() in wanted]
    if len(found) != 1:
        raise ValueError(
            f"it is a classifier of {len(names)} labels ({', '.join(names)}): set PROMPT_LABELS to the name of "
            "the one that is relevance"
        )
    return RecipePart(f"its label {names[found[0]]!r}", "setting" if labels else "files"), found[0]


def _choose(checkpoint: Path, template: str, names: Sequence[str]) -> tuple[FoundFamily, str, Source]:
    """Choose a family and the text of its template; the labels may come from elsewhere."""
    path = Path(template)
    if not template or template in FAMILIES:
        found = FoundFamily(FAMILIES[template], "setting") if template else find_family(checkpoint, names)
        return found, found.family.file.read_text(), found.source
    if not path.is_file():
        raise ValueError(f"PROMPT_TEMPLATE '{template}' is neither a file nor one of {', '.join(FAMILIES)}")
    found = UNKNOWN
    with suppress(ValueError):
        found = find_family(checkpoint, names)
    # A deployment's own file is the whole prompt.
    labels = _named_labels(path)
    family = RerankFamily(str(path), labels or found.family.labels, found.family.instruction)
    return FoundFamily(family, "setting"), path.read_text("utf-8-sig"), "setting" if labels else found.source


def _named_labels(template: Path) -> tuple[str, str] | None:
    """Read what a file names as its labels in a comment at its beginning: ``{# labels: ["true", "false"] #}``."""
    named = re.match(r"\{#-?\s*labels:(.*?)-?#\}", template.read_text("utf-8-sig"), re.DOTALL)
    if named is None:
        return None
    try:
        labels = json.loads(named[1])
    except ValueError:
        labels = None
    match labels:
        case [str(yes), str(no)]:
            return yes, no
    raise ValueError(f"the labels of PROMPT_TEMPLATE '{template}' must be a JSON list of two texts")
