"""The templates of rerankers: the family of each checkpoint, and the labels of its answer."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hiscore.models.cross_encoder import (
    MODULES,
    SENTENCES,
    TRANSFORMER,
    CrossEncoderFiles,
    read_cross_encoder,
)
from hiscore.models.family import is_classifier
from hiscore.prompts.chat import read_chat_template, read_json
from hiscore.prompts.recipe import Source
from hiscore.prompts.roles import GuardTemplate, RoleTemplate, read_roles
from hiscore.prompts.tracked_text import own

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class RerankFamily:
    """The way in which a family of rerankers is asked.

    Attributes:
        name: For PROMPT_TEMPLATE; its template is the file of that name.
        labels: The texts whose tokens mean relevant and not relevant; the second is empty where the logit of the
            first alone is the score.
        instruction: The default of a request's instruction.
        in_chat: The template is the user's message in the checkpoint's own chat template.
        marks: Parts of the names of its checkpoints, in lower case.
        model_type: That of its checkpoints, where no others have it.
    """

    name: str
    labels: tuple[str, str]
    instruction: str = ""
    in_chat: bool = False
    marks: tuple[str, ...] = ()
    model_type: str = ""
    guard: tuple[str, str] | None = None
    """`instructed` and `answer` of the `GuardTemplate` of a guard, which its own chat template asks."""

    @property
    def file(self) -> Path:
        return TEMPLATES / f"{self.name.replace('-', '_')}.jinja"


FAMILIES = {
    each.name: each
    for each in msgspec.json.decode((TEMPLATES / "families.json").read_bytes(), type=list[RerankFamily])
}
"""The file says where each was read, too."""
DEFAULT = FAMILIES["yes-no"]
REASONING_GUARDS = "gpt-oss-safeguard", "granite-guardian-3.3", "granite-guardian-4"
NOT_SCORED = "and not which tokens are its labels: set PROMPT_TEMPLATE and PROMPT_LABELS to what it learnt"
FROM_FILES = "chat_template"
"""Name of a template that a checkpoint brings along."""
PAIR = RerankFamily("pair", ("", ""), "")
"""Query and document as the tokenizer joins them."""


@dataclass(frozen=True)
class FoundFamily:
    """A family of rerankers, and where it was found.

    Attributes:
        file: The file that says it, if one does.
        roles: The checkpoint's own template, in place of the family's.
        label_ids: Labels by their tokens, in place of the family's.
        labels_by: Where the labels were found.
    """

    family: RerankFamily
    source: Source
    file: str = ""
    roles: RoleTemplate | None = None
    label_ids: tuple[int, ...] = ()
    labels_by: Source | None = None


UNKNOWN = FoundFamily(DEFAULT, "guess")


def find_family(checkpoint: Path, names: Iterable[str] = (), is_encoder: bool = False) -> FoundFamily:
    """Find how a checkpoint is asked, by its files or else its names, or raise ValueError: it is not served."""
    files = read_cross_encoder(checkpoint)
    if is_encoder or (files.task and not files.takes_messages):
        if files.takes_messages:
            raise ValueError(f"{TRANSFORMER} asks by a chat template, and an encoder reads none")
        pair = replace(PAIR, instruction=files.prompt)
        file = MODULES if files.task else ""
        return FoundFamily(pair, "files", file=file, label_ids=files.label_ids)
    roles = read_roles(checkpoint, files)
    if roles and not files.task and not roles.named:
        roles = None
    if files.task:
        if roles is None:
            raise ValueError(
                f"{TRANSFORMER} asks by a chat template, which has no place for query and document"
            )
        return _of_roles(roles, files)
    config = read_json(checkpoint / "config.json")
    known = [name.lower() for name in (checkpoint.name, str(config.get("_name_or_path") or ""), *names)]
    if any(mark in name for mark in REASONING_GUARDS for name in known):
        asks = "ask it by /v1/chat/completions, or set PROMPT_TEMPLATE"
        raise ValueError(f"it is a guard that reasons first, so that no one token is its answer: {asks}")
    known_families = [family for family in FAMILIES.values() if family.marks]
    for family in known_families:
        if family.model_type and family.model_type == config.get("model_type"):
            return FoundFamily(family, "files")
        # vLLM's key, for conversions to classifiers.
        if config.get("classifier_from_token") == [label for label in reversed(family.labels) if label]:
            return FoundFamily(family, "files")
    for family in known_families:
        if any(mark in name for mark in family.marks for name in known):
            if family.guard:
                return as_guard(FoundFamily(family, "name"), checkpoint)
            if roles is None:
                return FoundFamily(family, "name")
            found = _of_roles(roles, files)
            return replace(found, family=replace(found.family, labels=family.labels), labels_by="name")
    if roles and is_classifier(config.get("architectures")):
        return _of_roles(roles, files)
    if roles:
        raise ValueError(f"the chat template has the roles query and document, {NOT_SCORED}")
    if files.prompt and not is_classifier(config.get("architectures")):
        raise ValueError(f"{SENTENCES} has the default prompt {files.prompt!r}, {NOT_SCORED}")
    return UNKNOWN


def as_guard(found: FoundFamily, checkpoint: Path) -> FoundFamily:
    """Give a guard its chat template, or raise ValueError: there is none."""
    chat = read_chat_template(checkpoint)
    if chat is None or found.family.guard is None:
        raise ValueError(f"a {found.family.name} is asked by its own chat template, and there is none")
    return replace(found, roles=GuardTemplate(chat, False, {}, *found.family.guard))


def _of_roles(roles: RoleTemplate, files: CrossEncoderFiles) -> FoundFamily:
    family = RerankFamily(FROM_FILES, ("", ""), own(files.prompt))
    return FoundFamily(family, "files", roles=roles, label_ids=files.label_ids)
