"""Turn ``MODEL`` into a local checkpoint: config.json, safetensors, tokenizer files.

Importing this package is cheap, and so is resolving a checkpoint that is already there: the code that downloads
and converts is imported only when there is something to download or convert.
"""

from hiscore.checkpoint.digests import check_digests
from hiscore.checkpoint.errors import BadCheckpoint, CheckpointError
from hiscore.checkpoint.resolve import published_name, resolve

__all__ = ["BadCheckpoint", "CheckpointError", "check_digests", "published_name", "resolve"]
