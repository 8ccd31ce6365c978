"""Rerank requests to token ids: a query and a document in a template, the documents' common beginning shared."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hiscore.models.cross_encoder import (
    MODULES,
    SENTENCES,
    TRANSFORMER,
    CrossEncoderFiles,
    Refused,
    read_cross_encoder,
)
from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.family import RANKING, is_classifier, scores_tokens
from hiscore.models.stored_config import stored_config
from hiscore.models.support import label_names
from hiscore.prompts.chat import (
    ChatTemplate,
    PromptError,
    compiled,
    read_chat_template,
    render,
    special_tokens,
)
from hiscore.prompts.families import FAMILIES, PAIR, UNKNOWN, FoundFamily, RerankFamily, as_guard, find_family
from hiscore.prompts.listwise import MARKS, NAME, ListwisePrompts
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
        self.family, self._roles = found.family, found.roles
        self.template = RecipePart(self.family.name, found.source)
        self._chat: ChatTemplate | None = read_chat_template(checkpoint) if self.family.in_chat else None
        self._template = compiled(source)
        self._special_tokens = special_tokens(checkpoint)
        sources = [source, self._chat.source] if self._chat else [source]
        self.tokenizer = PromptTokenizer(checkpoint, sources)
        self.tokenizer.check_own(prompt := self.text("a", "b"))
        if prompt == self.text("a", "c"):
            raise ValueError(
                "the template writes no document: set PROMPT_TEMPLATE to one with {{ document }}"
            )
        self.label_ids: Sequence[int] = ()
        self.label_lengths: Sequence[int] | None = None
        if is_classifier:
            return
        if found.label_ids and not labels:
            self.label_ids = found.label_ids
            self.readout = of_tokens(self.tokenizer, self.label_ids)
            return
        self._find_labels(labels)
        texts = [repr(text) for text in labels or self.family.labels if text]
        self.readout = RecipePart(" against ".join(texts), "setting" if labels else labels_by)

    def _find_labels(self, labels: Sequence[str]) -> None:
        if labels and (len(labels) != 2 or not labels[0]):
            raise ValueError("PROMPT_LABELS must be two texts (yes,no), or one and a comma (yes,)")
        texts = [text for text in labels or self.family.labels if text]
        if self.family.in_chat and not labels:
            texts = [self._answered(text) for text in texts]
        prompt = self.text("a", "b")
        ids, *continued = self.tokenizer.encode([prompt, *(prompt + text for text in texts)])
        for text, longer in zip(texts, continued, strict=True):
            # A guard has no other answers, so that the first tokens of its labels tell them apart.
            own_tokens = len(longer) - len(ids)
            many = self.family.guard or len(labels) == len(texts) == 2
            if longer[: len(ids)] != ids or (own_tokens != 1 and not (many and own_tokens > 0)):
                raise ValueError(
                    f"the label {text!r} does not add one token to the prompt: set PROMPT_LABELS to two texts "
                    "that follow it, as in PROMPT_LABELS=yes,no"
                )
        behind = [longer[len(ids) :] for longer in continued]
        if self.family.guard:
            behind = [each[:1] for each in behind]
        if len(set(map(tuple, behind))) < len(texts):
            raise ValueError(
                f"the labels {texts[0]!r} and {texts[1]!r} are the same token: set PROMPT_LABELS to others"
            )
        self.label_ids = [token for each in behind for token in each]
        if len(self.label_ids) > len(texts):
            self.label_lengths = [*map(len, behind)]

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
        asked = self.family.instruction if instruction is None else instruction
        if self._roles:
            if instruction and not self._roles.takes_instruction:
                raise PromptError("'instruction' has no place in this model's chat template")
            return self._roles.text(query, document, asked)
        prompt = render(
            self._template, query=query, document=document, instruction=asked, **self._special_tokens
        )
        if self._chat:
            return self._chat.render([{"role": "user", "content": prompt}])
        return prompt + "\nAnswer:" if self.family.in_chat else prompt

    def ids(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> Prompts:
        if not documents:
            return Prompts([], [])
        pairs = zip(queries, documents, strict=True)
        once, ids = self.tokenizer.encode_alike([self.text(*pair, instruction) for pair in pairs])
        rest = share(ids)
        return Prompts(once + rest.query, rest.items)

    def characters(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> int:
        around = len(self.text("a", "b", instruction))
        return sum(map(len, queries)) + sum(map(len, documents)) + around * len(documents)


def make_prompts(
    checkpoint: Path, template: str = "", labels: Sequence[str] = (), names: Sequence[str] = ()
) -> tuple[RerankPrompts | PairPrompts | ListwisePrompts, Recipe]:
    """Choose the prompts of a checkpoint and what is read behind them, or raise ValueError: none are served."""
    config = stored_config(checkpoint)
    if str((config.get("architectures") or [""])[0]).endswith(RANKING):
        if template or labels:
            raise ValueError(f"{NAME} asks by its own template: unset PROMPT_TEMPLATE and PROMPT_LABELS")
        cosine = f"the cosine of its projections at {' and '.join(MARKS)}"
        prompt, read, as_is = (
            RecipePart(each, "files", "config.json") for each in (NAME, cosine, "Identity")
        )
        return ListwisePrompts(checkpoint), Recipe(prompt, read, as_is)
    if scores_tokens(config.get("architectures")):
        raise ValueError("it scores tokens, not texts: ask /pooling")
    files = CrossEncoderFiles()
    # What is set wins, also over files that are not served.
    with suppress(*(Refused,) if template else ()):
        files = read_cross_encoder(checkpoint)
    is_encoder = config.get("model_type") in ENCODER_FAMILIES
    classifies = is_encoder or is_classifier(config.get("architectures"))
    if is_encoder and template:
        raise ValueError("PROMPT_TEMPLATE must not be set: an encoder reads no prompt")
    if files.task and not template and classifies == bool(files.label_ids):
        raise ValueError(
            f"{TRANSFORMER} is of a model for {files.task}, and config.json has {config['architectures'][0]}"
        )
    found = UNKNOWN if template else find_family(checkpoint, names, is_encoder)
    prompts: RerankPrompts | PairPrompts
    if found.family.name == PAIR.name or (classifies and not template and found is UNKNOWN):
        if labels and files.label_ids:
            raise ValueError("PROMPT_LABELS needs PROMPT_TEMPLATE: the files ask by pairs")
        prompts = PairPrompts(checkpoint, files.prompt, files.label_ids)
        part = RecipePart(PAIR.name, found.source, found.file)
        readout = of_tokens(prompts.tokenizer, files.label_ids) if files.label_ids else None
    else:
        prompts = RerankPrompts(checkpoint, template, labels, classifies, names)
        part, readout = prompts.template, None if classifies else prompts.readout
    column, count = 0, 1
    if readout is None:
        of_family = prompts.family.labels[0] if isinstance(prompts, RerankPrompts) else ""
        readout, column, count = _of_classifier(checkpoint, labels, of_family, files)
    asked = files.prompt if isinstance(prompts, PairPrompts) else prompts.family.instruction
    by: Source = "files" if asked == files.prompt else part.source
    recipe = Recipe(
        part,
        readout,
        _activation(files, config, count),
        RecipePart(f"{files.length[0]} tokens", "files", files.length[1])
        if files.length[0]
        else Recipe.length,
        RecipePart(repr(str(asked)), by, SENTENCES * (by == "files")) if asked else Recipe.instruction,
        column,
        files.length[0],
    )
    return prompts, recipe


def of_tokens(tokenizer: PromptTokenizer, ids: Sequence[int]) -> RecipePart:
    """Labels that a file names by their tokens; raises ValueError: the tokenizer has no such tokens."""
    texts = [tokenizer.token(number) for number in ids]
    if None in texts or len(set(ids)) < len(ids):
        raise ValueError(
            f"LogitScore: tokens {', '.join(map(str, ids))} are not of this tokenizer, or the same"
        )
    return RecipePart(" against ".join(map(repr, texts)), "files", "LogitScore")


def _activation(files: CrossEncoderFiles, config: Mapping[str, Any], labels: int) -> RecipePart:
    name, file = files.activation
    if labels == 1:
        return RecipePart(name, "files", file) if name else Recipe.activation
    if name == "Sigmoid":
        return RecipePart(name, "files", file)
    if name not in ("", "Identity"):
        raise ValueError(f"{file}: activation {name} of {labels} labels makes no score of one of them")
    if config.get("problem_type") == "multi_label_classification":
        return RecipePart("Sigmoid", "files", "config.json")
    return RecipePart("Softmax", "default")


def _of_classifier(
    checkpoint: Path, labels: Sequence[str], of_family: str, files: CrossEncoderFiles
) -> tuple[RecipePart, int, int]:
    """Find the label of a classifier that is relevance, its index, and how many there are."""
    count = stored_config(checkpoint).get("num_labels") or 2
    names = label_names(checkpoint) or tuple(f"LABEL_{index}" for index in range(count))
    head = " > ".join("+".join(each.modes) if each.kind == "Pooling" else each.kind for each in files.head)
    behind = f" of {head}" if head else ""
    if len(names) == 1 and not labels:
        return RecipePart(f"its one label{behind}", "files", MODULES if head else ""), 0, 1
    wanted = {label.lower() for label in labels if label} or {"relevant", of_family.lower()}
    found = [index for index, name in enumerate(names) if name.lower() in wanted]
    if len(found) != 1:
        raise ValueError(
            f"it is a classifier of {len(names)} labels ({', '.join(names)}): set PROMPT_LABELS to the name of "
            "the one that is relevance"
        )
    part = RecipePart(f"its label {names[found[0]]!r}{behind}", "setting" if labels else "files")
    return part, found[0], len(names)


def _choose(checkpoint: Path, template: str, names: Sequence[str]) -> tuple[FoundFamily, str, Source]:
    """Choose a family and the text of its template; the labels may come from elsewhere."""
    path = Path(template)
    if not template or template in FAMILIES:
        found = FoundFamily(FAMILIES[template], "setting") if template else find_family(checkpoint, names)
        if found.family.guard and not found.roles:
            found = as_guard(found, checkpoint)
        source = found.roles.chat.source if found.roles else found.family.file.read_text()
        return found, source, found.labels_by or found.source
    if not path.is_file():
        raise ValueError(f"PROMPT_TEMPLATE '{template}' is neither a file nor one of {', '.join(FAMILIES)}")
    found = UNKNOWN
    with suppress(ValueError):
        found = find_family(checkpoint, names)
    # A deployment's own file is the whole prompt.
    labels = _named_labels(path)
    family = RerankFamily(str(path), labels or found.family.labels, found.family.instruction)
    chosen = FoundFamily(family, "setting", label_ids=() if labels else found.label_ids)
    return chosen, path.read_text("utf-8-sig"), "setting" if labels else found.labels_by or found.source


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
