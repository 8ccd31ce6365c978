"""Concurrent calls, answered in the order of their records."""

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue

from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.records import Answer, RecordT, ResultT


def answer_in_order(
    call: Callable[[RecordT], ResultT], records: Iterable[RecordT | InvalidRequest], in_flight: int
) -> Generator[Answer[RecordT, ResultT], None, None]:
    """Make concurrent calls and yield each answer as soon as all earlier ones have been yielded.

    A thread reads the records, at most ``in_flight`` ahead, so that the input may be a slow pipe. If the caller
    stops early, that thread may be left waiting for input.

    Args:
        call: Called once per record, from several threads.
        records: Records, or why one could not be parsed.
        in_flight: Maximum number of concurrent calls.
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

    def submit_records() -> None:
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

    threading.Thread(target=submit_records, daemon=True).start()
    try:
        while (future := pending.get()) is not None:
            yield future.result()
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
