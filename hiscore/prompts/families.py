"""The templates of rerankers: the family of each checkpoint, and the labels of its answer."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hiscore.prompts.chat import (
    ChatTemplate,
    PromptError,
    compiled,
    read_chat_template,
    read_json,
    render,
    special_tokens,
)
from hiscore.prompts.recipe import Source

TEMPLATES = Path(__file__).parent / "templates"
BGE_GEMMA = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing "
    "a prediction of either 'Yes' or 'No'."
)
WEB_SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


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
    """

    name: str
    labels: tuple[str, str]
    instruction: str
    in_chat: bool = False
    marks: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        return TEMPLATES / f"{self.name.replace('-', '_')}.jinja"


FAMILIES = {
    family.name: family
    for family in (
        # The model card of Qwen/Qwen3-Reranker-0.6B.
        RerankFamily("qwen3-reranker", ("yes", "no"), WEB_SEARCH, marks=("qwen3-reranker",)),
        # mxbai_rerank/mxbai_rerank_v2.py of mixedbread-ai/mxbai-rerank.
        RerankFamily(
            "mxbai-rerank-v2", ("1", "0"), "", marks=("mxbai-rerank-base-v2", "mxbai-rerank-large-v2")
        ),
        # The model card of BAAI/bge-reranker-v2-gemma, whose score is the logit itself.
        RerankFamily("bge-reranker-v2-gemma", ("Yes", ""), BGE_GEMMA, marks=("bge-reranker-v2-gemma",)),
        RerankFamily("yes-no", ("Yes", "No"), WEB_SEARCH, in_chat=True),
    )
}
DEFAULT = FAMILIES["yes-no"]
ROLES = ("query", "document")
NOT_SCORED = (
    "and rerank requests are not scored so yet: set PROMPT_TEMPLATE, and PROMPT_LABELS, to what the model was "
    "trained with"
)


@dataclass(frozen=True)
class FoundFamily:
    """A family of rerankers, and where it was found."""

    family: RerankFamily
    source: Source
    remarks: tuple[str, ...] = ()


UNKNOWN = FoundFamily(DEFAULT, "guess")


def find_family(checkpoint: Path, names: Iterable[str] = ()) -> FoundFamily:
    """Find a checkpoint's family by the names that it is known by, or by what its files say.

    Raises:
        ValueError: The files say how queries and documents are scored, and no family is scored so.
    """
    config = read_json(checkpoint / "config.json")
    known = [name.lower() for name in (checkpoint.name, str(config.get("_name_or_path") or ""), *names)]
    known_families = [family for family in FAMILIES.values() if family.marks]
    chat, prompt = read_chat_template(checkpoint), _default_prompt(checkpoint)
    by_roles = chat if chat and all(re.search(f"[\"']{role}[\"']", chat.source) for role in ROLES) else None
    for family in known_families:
        asked = replace(family, instruction=prompt or family.instruction)
        if by_roles and _asks_alike(by_roles, asked, prompt, special_tokens(checkpoint)):
            return FoundFamily(asked, "files")
        # vLLM's key, for conversions to classifiers.
        if config.get("classifier_from_token") == [label for label in reversed(family.labels) if label]:
            return FoundFamily(family, "files")
    for family in known_families:
        if any(mark in name for mark in family.marks for name in known):
            remark = f"the model's chat template asks otherwise than {family.name}, which its name chose"
            return FoundFamily(family, "name", (remark,) if by_roles else ())
    if others := [kind for kind in _modules(checkpoint) if kind != "Transformer"]:
        raise ValueError(f"modules.json names {others[0]}, {NOT_SCORED}")
    if by_roles:
        raise ValueError(f"the chat template has the roles query and document, {NOT_SCORED}")
    if prompt:
        raise ValueError(f"config_sentence_transformers.json has the default prompt {prompt!r}, {NOT_SCORED}")
    return UNKNOWN


def _asks_alike(chat: ChatTemplate, family: RerankFamily, prompt: str, tokens: Mapping[str, str]) -> bool:
    messages = [{"role": "system", "content": prompt}] if prompt else []
    messages += [{"role": role, "content": role} for role in ROLES]
    values = {"query": "query", "document": "document", "instruction": family.instruction, **tokens}
    with suppress(PromptError):
        return chat.render_as_is(messages) == render(compiled(family.file.read_text()), **values)
    return False


def _default_prompt(checkpoint: Path) -> str:
    """The text that sentence-transformers puts before queries, or gives to a chat template's system."""
    config = read_json(checkpoint / "config_sentence_transformers.json")
    return str((config.get("prompts") or {}).get(config.get("default_prompt_name")) or "")


def _modules(checkpoint: Path) -> Sequence[str]:
    """The kinds of modules of which sentence-transformers makes the model."""
    file = checkpoint / "modules.json"
    modules = json.loads(file.read_text()) if file.is_file() else []
    return [str(module.get("type")).rpartition(".")[2] for module in modules]
