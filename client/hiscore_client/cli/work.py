"""Many records at once, answered in their order."""

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue

from hiscore_client.cli.records import Answer, RecordT, ResultT
from hiscore_client.errors import HiscoreError, InvalidRequest


def answer_all(
    call: Callable[[RecordT], ResultT], records: Iterable[RecordT | InvalidRequest], in_flight: int
) -> Generator[Answer[RecordT, ResultT], None, None]:
    """Answer records with up to ``in_flight`` calls at once; an answer comes out as soon as those before it have.

    Records are read in a thread of their own, no further ahead than ``in_flight``, so input may trickle in. If
    the caller stops early, that thread may be left behind, waiting for input.
    """

    def answer(record: RecordT | InvalidRequest) -> Answer[RecordT, ResultT]:
        if isinstance(record, InvalidRequest):
            return Answer(None, record)
        try:
            return Answer(record, call(record))
        except HiscoreError as error:
            return Answer(record, error)

    pending: Queue[Future[Answer[RecordT, ResultT]] | None] = Queue(maxsize=in_flight)
    pool = ThreadPoolExecutor(in_flight)
    stopped = threading.Event()

    def feed() -> None:
        try:
            for record in records:
                if stopped.is_set():
                    return
                pending.put(pool.submit(answer, record))
        except BaseException as error:
            failed: Future[Answer[RecordT, ResultT]] = Future()
            failed.set_exception(error)
            pending.put(failed)
        pending.put(None)

    threading.Thread(target=feed, daemon=True).start()
    try:
        while (future := pending.get()) is not None:
            yield future.result()
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
