"""The process of a rank other than the first: does what the first one sends, and ends with it.

usage: python -m hiscore.parallel.follower PARENT_PID RANK RANKS DEVICE STORE_FD CHANNEL_FD PULSE_FD
"""

import logging
import os
import pickle
import signal
import socket
import sys
from functools import partial
from multiprocessing.connection import Connection

import torch

from hiscore.parallel.group import Distributed
from hiscore.parallel.heartbeat import HeartbeatMonitor, HeartbeatSender
from hiscore.parallel.rank import Rank
from hiscore.parallel.shard import Shard
from hiscore.parallel.start import store_path, use
from hiscore.server.die_with_parent import die_with

log = logging.getLogger(__name__)


def main() -> None:
    parent, number, ranks = map(int, sys.argv[1:4])
    device, (store, channel, heartbeat) = torch.device(sys.argv[4]), map(int, sys.argv[5:8])
    die_with(parent, signal.SIGKILL)
    # A Ctrl-C of the terminal is the launcher's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _watch_first_rank(socket.socket(fileno=heartbeat), parent)
    use(device, ranks)
    shard = Shard(number, ranks)
    rank = Rank(device, Distributed(store_path(store), shard, device))
    follow(Connection(channel), rank)
    for held in rank.held.values():
        if hasattr(held, "close"):
            held.close()
    # Not by the way of destructors, which might exchange something.
    os._exit(0)


def follow(channel: Connection, rank: Rank) -> None:
    """Do work until the first rank closes the channel."""
    while True:
        try:
            message = channel.recv_bytes()
        except (EOFError, OSError):
            return
        # Its first byte says whether the first rank waits for an answer; the rest may not be readable.
        confirm = message[0] == 1
        try:
            pickle.loads(memoryview(message)[1:])(rank)
        except Exception as error:
            if not confirm:
                log.critical("rank %d fails and ends", rank.shard.rank, exc_info=True)
                os._exit(1)
            answer = f"{type(error).__name__}: {error}"
        else:
            answer = ""
        # What it refers to may be large.
        del message
        if confirm:
            channel.send(answer)


def _watch_first_rank(heartbeat: socket.socket, parent: int) -> None:
    """Send heartbeats, and end with the first rank: this one alone if that has ended, both of them if it hangs.

    A first rank that hangs would be waited for: Triton calls it ready, and it has no exit code.
    """

    def end(what: str) -> None:
        if os.getppid() == parent:
            log.critical("%s: its process ends, and its other ranks", what)
            os.kill(parent, signal.SIGKILL)
        os._exit(1)

    HeartbeatSender([heartbeat], on_loss=partial(os._exit, 1))
    HeartbeatMonitor({0: heartbeat}, end, busy=None)


if __name__ == "__main__":
    main()
