"""The templates of rerankers: the family of each checkpoint, and the labels of its answer."""

from dataclasses import dataclass
from pathlib import Path

from hiscore.prompts.chat import read_json

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


def family_of(checkpoint: Path) -> RerankFamily:
    """Find a checkpoint's family by its name, as its directory or its own files give it."""
    names = [checkpoint.name, read_json(checkpoint / "config.json").get("_name_or_path") or ""]
    for family in FAMILIES.values():
        if any(mark in str(name).lower() for mark in family.marks for name in names):
            return family
    return DEFAULT
