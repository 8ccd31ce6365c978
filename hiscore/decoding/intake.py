"""Calls on their way into the engine. Encoding a large text takes seconds: a thread of its own does it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Full, Queue
from typing import Any

from hiscore.arrays import Int32
from hiscore.decoding.request import PromptReader
from hiscore.decoding.sampling_params import DecodeOptions
from hiscore.decoding.sequence import DecodeCall
from hiscore.errors import Code, RequestError, to_request_error

# A core encodes about a megabyte in a second: smaller texts hold nobody up for long.
LARGE_CHARACTERS = 2**16
MOST_LARGE = 16


@dataclass(frozen=True)
class Asked:
    """A call as it was sent; the fields are those of `PromptReader.read` and of `DecodeCall`."""

    input_ids: Int32 | None
    text: str | None
    options: DecodeOptions
    deadline: float
    start_by: float


class Intake:
    """Reads calls, and hands them on with their `reply_to`: to `submit`, or to `refuse` with the error.

    Both are called by the caller of `take`, or for a large text by another thread, before which at most
    `MOST_LARGE` wait.
    """

    def __init__(
        self,
        prompts: PromptReader,
        submit: Callable[[DecodeCall, Any], None],
        refuse: Callable[[Any, RequestError], None],
    ) -> None:
        self._prompts, self._submit, self._refuse = prompts, submit, refuse
        self.full = 0
        """Calls that were refused because too many large ones wait."""
        self._large: Queue[tuple[Asked, Any] | None] = Queue(MOST_LARGE)
        self._thread = threading.Thread(target=self._read_large, name="hiscore-intake", daemon=True)
        self._thread.start()

    def take(self, asked: Asked, reply_to: Any) -> None:
        """Never blocks for long, never raises."""
        if asked.text is None or len(asked.text) <= LARGE_CHARACTERS:
            self._read(asked, reply_to)
            return
        try:
            self._large.put_nowait((asked, reply_to))
        except Full:
            self.full += 1
            busy = f"{MOST_LARGE} texts of more than {LARGE_CHARACTERS} characters wait to be encoded"
            self._refuse(reply_to, RequestError(f"the server is full: {busy}", Code.UNAVAILABLE))

    def close(self) -> None:
        """Read what was taken, and end the thread."""
        self._large.put(None)
        self._thread.join()

    def _read_large(self) -> None:
        while (entry := self._large.get()) is not None:
            self._read(*entry)

    def _read(self, asked: Asked, reply_to: Any) -> None:
        try:
            prompt = self._prompts.read(asked.input_ids, asked.text, asked.options)
            self._submit(DecodeCall(prompt, asked.options, asked.deadline, asked.start_by), reply_to)
        except Exception as error:
            self._refuse(reply_to, to_request_error(error))
