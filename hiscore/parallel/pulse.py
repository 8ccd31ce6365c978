"""How ranks know of each other that they live: each follower sends the first rank a byte several times a second.

A process that dies closes its socket; one that is stopped or stuck falls silent.
"""

import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping

BEAT_S = 0.25
SILENT_ROUNDS = 6
"""Rounds of `ROUND_S` without a byte that count as a hang. Counted and not timed: while the first rank itself is
stopped, no round passes."""
ROUND_S = 0.5


def beat(pulse: socket.socket) -> None:
    """Send bytes from a thread of its own; end this process when nobody receives them."""

    def send() -> None:
        pause = threading.Event()
        try:
            while True:
                pulse.sendall(b".")
                pause.wait(BEAT_S)
        except OSError:
            os._exit(1)

    threading.Thread(target=send, name="pulse", daemon=True).start()


class Watch:
    """Listens to followers, on a thread of its own."""

    def __init__(self, pulses: Mapping[int, socket.socket], on_loss: Callable[[str], None]) -> None:
        """Begin.

        Args:
            pulses: The socket of each rank.
            on_loss: Called once, with what has happened.
        """
        self._pulses, self._on_loss = pulses, on_loss
        self._closed = threading.Event()
        self.patient = threading.Event()
        """While set, silence is no hang: reading files may hold the interpreter for long."""
        self._thread = threading.Thread(target=self._listen, name="ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; not from `on_loss`."""
        self._closed.set()
        self._thread.join()

    def _listen(self) -> None:
        silent = dict.fromkeys(self._pulses, 0)
        with selectors.DefaultSelector() as selector:
            for rank, pulse in self._pulses.items():
                selector.register(pulse, selectors.EVENT_READ, rank)
            while not self._closed.is_set():
                heard = selector.select(0)
                for key, _ in heard:
                    if not _received(key.fileobj):
                        return self._lost(f"rank {key.data} has died")
                    silent[key.data] = -1
                for rank in silent:
                    silent[rank] = 0 if self.patient.is_set() else silent[rank] + 1
                    if silent[rank] >= SILENT_ROUNDS:
                        return self._lost(
                            f"rank {rank} hangs: no sign of life for {SILENT_ROUNDS * ROUND_S:g} s"
                        )
                # Not in the selector: a beat would wake it at once, and death is a beat's end.
                self._closed.wait(ROUND_S)
        return None

    def _lost(self, what: str) -> None:
        if not self._closed.is_set():
            self._on_loss(what)


def _received(pulse: object) -> bytes:
    assert isinstance(pulse, socket.socket)
    try:
        return pulse.recv(4096)
    except OSError:
        return b""
