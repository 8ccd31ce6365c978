"""Client SDK of hiscore: scores items by the probabilities of label tokens, and streams generated text."""

import logging

from hiscore_client.async_client import AsyncScoreClient
from hiscore_client.chunking import ChunkLimits
from hiscore_client.client import ScoreClient
from hiscore_client.errors import (
    Cancelled,
    DeadlineExceeded,
    HiscoreError,
    InvalidRequest,
    Overloaded,
    ServerFault,
    ServerUnreachable,
)
from hiscore_client.generated import Chunk
from hiscore_client.results import ScoreResult, Usage
from hiscore_client.retry import RetryPolicy

__version__ = "0.1.0"

__all__ = [
    "AsyncScoreClient",
    "Cancelled",
    "Chunk",
    "ChunkLimits",
    "DeadlineExceeded",
    "HiscoreError",
    "InvalidRequest",
    "Overloaded",
    "RetryPolicy",
    "ScoreClient",
    "ScoreResult",
    "ServerFault",
    "ServerUnreachable",
    "Usage",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
