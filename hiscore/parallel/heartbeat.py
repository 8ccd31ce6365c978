"""Signs of life between ranks: the first rank and each other one send each other bytes.

A process that dies closes its sockets; one that is stopped or stuck falls silent.
"""

import selectors
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

BEAT_S = 0.25
SILENT_ROUNDS = 6
"""Rounds of `ROUND_S` without a byte that count as a hang. Counted and not timed: while the listener itself is
stopped, no round passes."""
ROUND_S = 0.5

ALIVE, BUSY = b".", b"b"
"""The bytes that are sent. The second also says that silence from then on is no hang."""


class HeartbeatSender:
    """Sends bytes from a thread of its own."""

    def __init__(
        self,
        peers: Collection[socket.socket],
        busy: threading.Event | None = None,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to send.

        Args:
            busy: While set, the others are told so; None: never.
            on_loss: Called when somebody no longer receives them.
        """
        self._peers, self._busy, self._on_loss = peers, busy, on_loss
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def send(self) -> None:
        """Send a byte now. From any thread; never waits."""
        byte = BUSY if self._busy and self._busy.is_set() else ALIVE
        for peer in self._peers:
            try:
                # A buffer that is full holds signs of life enough.
                with suppress(BlockingIOError):
                    peer.send(byte, socket.MSG_DONTWAIT)
            except OSError:
                self._on_loss()

    def close(self) -> None:
        """Send no more."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.send()
            self._closed.wait(BEAT_S)


class HeartbeatMonitor:
    """Listens to other ranks, on a thread of its own."""

    def __init__(
        self,
        peers: Mapping[int, socket.socket],
        on_loss: Callable[[str], None],
        busy: threading.Event | None,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Begin to listen.

        Args:
            peers: The socket of each other rank, by its number.
            on_loss: Called once, with what has happened.
            busy: While set, silence is no hang: reading files may hold the interpreter for long. None: it is none
                at first, and then as what is heard says.
            wait: Waits so many seconds; None: by the clock.
        """
        self._peers, self._on_loss = peers, on_loss
        self._busy, self._set_by_peers = busy or threading.Event(), busy is None
        if self._set_by_peers:
            self._busy.set()
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._thread = threading.Thread(target=self._listen, name="ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; not from `on_loss`."""
        self._closed.set()
        self._thread.join()

    def _listen(self) -> None:
        silent = dict.fromkeys(self._peers, 0)
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, rank)
            while not self._closed.is_set():
                for key, _ in selector.select(0):
                    heard = _received(key.fileobj)
                    if not heard:
                        return self._lost(f"rank {key.data} has died")
                    silent[key.data] = -1
                    self._update_busy(heard)
                for rank in silent:
                    silent[rank] = 0 if self._busy.is_set() else silent[rank] + 1
                    if silent[rank] >= SILENT_ROUNDS:
                        return self._lost(
                            f"rank {rank} hangs: no sign of life for {SILENT_ROUNDS * ROUND_S:g} s"
                        )
                # Not in the selector: a beat would wake it at once, and death is a beat's end.
                self._wait(ROUND_S)
        return None

    def _update_busy(self, heard: bytes) -> None:
        if self._set_by_peers and heard.endswith(BUSY):
            self._busy.set()
        elif self._set_by_peers:
            self._busy.clear()

    def _lost(self, what: str) -> None:
        if not self._closed.is_set():
            self._on_loss(what)


def _received(peer: object) -> bytes:
    assert isinstance(peer, socket.socket)
    try:
        return peer.recv(4096)
    except OSError:
        return b""
