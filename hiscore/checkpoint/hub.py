"""Download checkpoints from a Hugging Face hub, without any file that could run as code."""

from pathlib import Path

from hiscore.checkpoint.directory import ADAPTER
from hiscore.checkpoint.errors import CheckpointError
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
    "additional_chat_templates/*.jinja",
]
# A pattern's * also matches slashes, and some repositories contain the weights again in another layout.
UNWANTED = ["*/*.safetensors*", "consolidated*"]


def download(repository: str, *, progress: bool = True) -> Path:
    """Download ``org/name`` into the hub's own cache, unless it is there, and return its directory.

    The hub's settings apply: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE.

    Raises:
        CheckpointError: No hub, no such repository, no access, or no safetensors in it.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise CheckpointError(
            f"'{repository}' is not a local directory, and huggingface_hub is not installed to fetch it: "
            "pip install '.[server]' in a checkout of hiscore"
        ) from None
    if not progress:
        disable_progress_bars()
    try:
        directory = Path(snapshot_download(repository, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    # Network, permissions, a wrong name, a full disk: the operator must be told which.
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise CheckpointError(
            f"'{repository}' is not a local directory, and fetching it from the hub failed: "
            f"{type(error).__name__}: {reason}. Check the name and the network (HF_ENDPOINT, HF_TOKEN), or set "
            "MODEL to a local directory"
        ) from error
    if not any(directory.glob("*.safetensors")) and not (directory / ADAPTER).is_file():
        raise CheckpointError(
            f"'{repository}' has no safetensors weights on the hub; pickle weights are refused, since they "
            "can run code when loaded. Choose a repository with *.safetensors"
        )
    return directory
