"""The first rank: starts the others, has them do the same work, and ends if one is lost.

One message a piece of work, the same bytes for all ranks. The first rank does the work of those bytes, too, so
that all see the same.
"""

import io
import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from subprocess import Popen, TimeoutExpired
from typing import TypeVar

import torch

from hiscore.parallel.group import Distributed
from hiscore.parallel.heartbeat import HeartbeatMonitor, HeartbeatSender
from hiscore.parallel.rank import Leader, Rank, RankError, Work, meet
from hiscore.parallel.shard import Shard
from hiscore.parallel.start import spawn, store_path, use

log = logging.getLogger(__name__)
T = TypeVar("T")

GRACE_S = 1.0
"""Time for the error responses to be sent after work has failed on the first rank."""
CLOSE_S = 8.0
"""Time for the others to end by themselves; some wait for processes that compute with their weights."""


def end_process() -> None:
    """End this process at once; the watchdog then starts a new server."""
    os._exit(1)


class Ranks(Leader):
    """The ranks of a model, one process for each device; this process is the first."""

    def __init__(self, devices: Sequence[torch.device], end: Callable[[], None] = end_process) -> None:
        """Start the others and meet them.

        `end` is called once if a rank is lost, when the others have been killed.
        """
        self._end, self._ending = end, threading.Lock()
        self._threads = torch.get_num_threads()
        self._channels: list[Connection] = []
        self._processes: list[Popen[bytes]] = []
        self._heartbeats: dict[int, socket.socket] = {}
        # Never closed: torch's store opens it again, by its number, in its destructor, which runs at any time
        # after this object is gone. Whatever had the number then would be written to, or waited for.
        store = os.memfd_create("hiscore-ranks")
        for rank in range(1, len(devices)):
            self._start(Shard(rank, len(devices)), devices[rank], store)
        self._busy = threading.Event()
        self._busy.set()
        self._beat = HeartbeatSender(self._heartbeats.values(), self._busy)
        self._watch = HeartbeatMonitor(self._heartbeats, self._lost, self._busy)
        use(devices[0], len(devices))
        shard = Shard(0, len(devices))
        self.rank = Rank(devices[0], Distributed(store_path(store), shard, devices[0]))
        self.do(meet, wait_for_all=True)

    def prepare(self, work: Work[T]) -> T:
        message = self._send(work, confirm=True)
        try:
            result: T = _work_of(message)(self.rank)
        except Exception as error:
            raise RankError(f"rank 0 of {self.rank.shard.ranks}: {error}") from error
        finally:
            answers = [self._answer(rank) for rank in range(1, self.rank.shard.ranks)]
        if failed := next(filter(None, answers), None):
            raise RankError(failed)
        return result

    def do(self, work: Work[T], wait_for_all: bool = False) -> T:
        result = self._do(work)
        if wait_for_all:
            self._do(meet)
        return result

    def started(self) -> None:
        self._busy.clear()
        self._beat.send()

    def close(self) -> None:
        # Whatever is found lost from now on, or has failed a moment ago: what ends the process ends here.
        self._ending.acquire(blocking=False)
        self._watch.close()
        # The others close for as long as they need.
        self._busy.set()
        self._beat.close()
        self._beat.send()
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            try:
                process.wait(CLOSE_S)
            except TimeoutExpired:
                process.kill()
                process.wait()
        for heartbeat in self._heartbeats.values():
            heartbeat.close()
        torch.set_num_threads(self._threads)

    def _start(self, shard: Shard, device: torch.device, store: int) -> None:
        ours, theirs = Pipe()
        hears, beats = socket.socketpair()
        self._processes.append(spawn(shard, device, store, theirs.fileno(), beats.fileno()))
        theirs.close()
        beats.close()
        self._channels.append(ours)
        self._heartbeats[shard.rank] = hears

    def _do(self, work: Work[T]) -> T:
        message = self._send(work, confirm=False)
        try:
            result: T = _work_of(message)(self.rank)
        except BaseException as error:
            # The others are in the middle of it, or wait for this rank's part of a sum.
            log.critical("work has failed on the first rank, and the others cannot go on: this process ends")
            end = threading.Timer(GRACE_S, self._lost, (f"rank 0 failed: {error!r}",))
            end.daemon = True
            end.start()
            raise
        return result

    def _send(self, work: Work[T], confirm: bool) -> bytes:
        message = io.BytesIO()
        message.write(bytes([confirm]))
        pickle.dump(work, message, protocol=5)
        for rank, channel in enumerate(self._channels, start=1):
            try:
                channel.send_bytes(message.getbuffer())
            except OSError:
                raise RankError(f"rank {rank} has died") from None
        return message.getvalue()

    def _answer(self, rank: int) -> str:
        """Receive a rank's report on its work: empty, or a description of what went wrong."""
        try:
            failed = self._channels[rank - 1].recv()
        except (EOFError, OSError):
            failed = "it has died; see its log above"
        return f"rank {rank} of {self.rank.shard.ranks}: {failed}" if failed else ""

    def _lost(self, what: str) -> None:
        if not self._ending.acquire(blocking=False):
            return
        log.critical("%s: this process ends, and its other ranks", what)
        for process in self._processes:
            process.kill()
        self._end()


def lead(devices: Sequence[torch.device]) -> Leader:
    """The leader of a rank on each device; of one alone, no process is started."""
    return Ranks(devices) if len(devices) > 1 else Leader(devices[0])


def _work_of(message: bytes) -> Work[T]:
    work: Work[T] = pickle.loads(memoryview(message)[1:])
    return work
