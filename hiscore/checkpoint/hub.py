"""Download checkpoints from a Hugging Face hub, without any file that could run as code."""

from pathlib import Path

from hiscore.checkpoint.directory import ADAPTER
from hiscore.checkpoint.errors import BadCheckpoint, CheckpointError, is_full
from hiscore.models.support import UNCONVERTED_TOKENIZERS

# No *.py and no pickle files: neither is ever loaded.
WANTED = [
    "config.json",
    "adapter_config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    *UNCONVERTED_TOKENIZERS,
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "[0-9]*_*/config.json",
    "additional_chat_templates/*.jinja",
]
# A pattern's * also matches slashes, and some repositories contain the weights again in another layout.
# Those of sentence-transformers' modules are in folders that begin with a number.
UNWANTED = ["[!0-9]*/*.safetensors*", "consolidated*"]


def download(repository: str, *, progress: bool = True) -> Path:
    """Download ``org/name`` into the hub's own cache, unless it is there, and return its directory.

    The hub's settings apply: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise CheckpointError(
            f"'{repository}' is not a local directory, and huggingface_hub is not installed to fetch it: "
            "pip install . ./client in a checkout of hiscore"
        ) from None
    if not progress:
        disable_progress_bars()
    try:
        directory = Path(snapshot_download(repository, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    # Network, permissions, a wrong name, a full disk: the operator must be told which.
    except Exception as error:
        if is_full(error):
            raise CheckpointError(
                f"fetching '{repository}' from the hub failed: the disk is full. Make room, or name another "
                "in HF_HOME"
            ) from error
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise CheckpointError(
            f"'{repository}' is not a local directory, and fetching it from the hub failed: "
            f"{type(error).__name__}: {reason}. Check the name and the network (HF_ENDPOINT, HF_TOKEN), or set "
            "MODEL to a local directory"
        ) from error
    if not any(directory.glob("*.safetensors")) and not (directory / ADAPTER).is_file():
        raise BadCheckpoint(
            f"'{repository}' has no safetensors weights on the hub; pickle weights are refused, since they "
            "can run code when loaded. Choose a repository with *.safetensors"
        )
    return directory
