"""Streams' outputs on their way to their callers: one thread sends for all, and notices who has gone.

A response is a round trip of a fraction of a millisecond, so tokens never wait for it: whoever has an output puts
it into a queue, and what has gathered for a stream while others were served goes out as one response.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hiscore.errors import RequestError

log = logging.getLogger(__name__)

# Seconds between two times that callers are asked whether they have gone, and how many are asked at a time: each
# question is a round trip as well.
ASK_S = 0.05
MOST_ASKED = 64
COUNT_S = 1.0

# Response tensors by name; as in `batch`, which needs Triton to be imported.
Outputs = dict[str, npt.NDArray[Any]]


class Piece(Protocol):
    """What is new of a stream; finish_reason is empty for all but its last piece."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str: ...


@dataclass(eq=False)
class Caller:
    """Stands for a caller outside of the sender's thread. All its fields are that thread's alone.

    reply_to: None after the last response. Triton waits with unloading a model for every reference to a response
    sender, however long ago that one has sent its last. gone: the caller has cancelled and is not asked again.
    """

    reply_to: Any
    pieces: list[Piece] = field(default_factory=list)
    error: RequestError | None = None
    gone: bool = False


class StreamSender:
    """Sends pieces in the order in which they were put, and ends each stream with exactly one last response.

    send: one response, ``(reply_to, outputs or error, last)``; returns whether the stream still stands. abandoned:
    whether who listens at a ``reply_to`` has gone. cancel: called with a `Caller` who has, again and again until
    the last piece comes, which is expected all the same. count: called about once a second while there are
    streams, and after that until it says that nothing is held any more. All four are called by the thread of this
    object.
    """

    def __init__(
        self,
        send: Callable[[Any, Outputs | RequestError, bool], bool],
        abandoned: Callable[[Any], bool],
        cancel: Callable[[Caller], None],
        count: Callable[[], bool],
    ) -> None:
        self._send, self._abandoned, self._cancel, self._count = send, abandoned, cancel, count
        self._queue: SimpleQueue[tuple[Caller, Piece | RequestError | None] | None] = SimpleQueue()
        self._live: dict[Caller, None] = {}  # in the order in which they were asked last
        self._closing = False
        self._last_event = 0.0
        self._counted = True
        self._thread = threading.Thread(target=self._run, name="hiscore-sender", daemon=True)
        self._thread.start()

    def open(self, reply_to: Any) -> Caller:
        """A stream begins; from now on its caller is watched."""
        caller = Caller(reply_to)
        self._queue.put((caller, None))
        return caller

    def put(self, caller: Caller, piece: Piece | RequestError) -> None:
        """The next of an open stream; an error is its last, and what comes after the last is dropped."""
        self._queue.put((caller, piece))

    def close(self) -> None:
        """Send what was put, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ask_at = count_at = 0.0
        while not self._closing:
            self._take()
            self._deliver_all()
            if (now := time.monotonic()) >= ask_at:
                self._ask()
                ask_at = time.monotonic() + ASK_S
            if (now >= count_at and not self._counted) or self._closing:
                idle = self._try(self._count)
                # What the last stream held is given back a little after its end.
                self._counted = idle and not self._live and now >= self._last_event + COUNT_S
                count_at = now + COUNT_S

    def _take(self) -> None:
        """Wait for something to do, then take all that is there."""
        idle = not self._live and self._counted
        try:
            entry = self._queue.get(timeout=None if idle else ASK_S)
            self._last_event, self._counted = time.monotonic(), False
            while True:
                self._sort(entry)
                entry = self._queue.get_nowait()
        except Empty:
            return

    def _sort(self, entry: tuple[Caller, Piece | RequestError | None] | None) -> None:
        if entry is None:
            self._closing = True
            return
        caller, piece = entry
        ended = caller.error or (caller.pieces and caller.pieces[-1].finish_reason)
        if piece is None:
            self._live[caller] = None
        elif ended or caller not in self._live:
            return
        elif isinstance(piece, RequestError):
            caller.error = piece
        else:
            caller.pieces.append(piece)

    def _deliver_all(self) -> None:
        for caller in [caller for caller in self._live if caller.pieces or caller.error]:
            self._deliver(caller)

    def _deliver(self, caller: Caller) -> None:
        """Send what has gathered for a caller: at most one response with outputs, and perhaps an error."""
        pieces, caller.pieces = caller.pieces, []
        stands, ended = True, False
        if pieces:
            ended = bool(pieces[-1].finish_reason)
            stands = self._try(self._send, caller.reply_to, joined(pieces), ended)
        if caller.error and stands:
            ended = True
            self._try(self._send, caller.reply_to, caller.error, True)
        if ended or not stands:
            del self._live[caller]
            caller.reply_to = None
        if not (ended or stands or caller.gone):
            self._try(self._cancel, caller)

    def _ask(self) -> None:
        """Ask those that have not been asked for longest."""
        for caller in [*islice(self._live, MOST_ASKED)]:
            self._live[caller] = self._live.pop(caller)
            caller.gone = caller.gone or self._try(self._abandoned, caller.reply_to)
            if caller.gone:
                # Not once: whoever goes while the call is still being read is cancelled before there is a stream.
                self._try(self._cancel, caller)

    def _try(self, call: Callable[..., Any], *arguments: Any) -> bool:
        """What a call gives; False if it raises. One stream's trouble must not end the thread that serves all."""
        try:
            return bool(call(*arguments))
        except Exception:
            log.exception("a stream's sender met an error")
            return False


def joined(pieces: Sequence[Piece]) -> Outputs:
    """Consecutive pieces of a stream as one response: ids int32 [n], text and reason strings [1]."""
    ids = [token for piece in pieces for token in piece.token_ids]
    return {
        "output_ids": np.array(ids, np.int32),
        "text_output": _string("".join(piece.text for piece in pieces)),
        "finish_reason": _string(pieces[-1].finish_reason),
    }


def _string(text: str) -> npt.NDArray[Any]:
    return np.array([text.encode()], np.object_)
