"""A proxy that lets through a given number of bytes, so that a test can stop work halfway."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.timeouts import TIMEOUT_S


class Gate:
    """Forwards connections to a server: a limited number of bytes from the callers, all answers back."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._left = 0
        self._changed = threading.Condition()
        self._closed = False
        self.held = False

    def allow(self, size: int) -> None:
        with self._changed:
            self._left += size
            self.held = False
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # Closing alone does not wake a thread that accepts.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for function in (self._ask, self._answer):
                threading.Thread(target=function, args=(caller, server), daemon=True).start()

    def _ask(self, caller: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := caller.recv(4_096):
                if not self._let_through(len(data)):
                    break
                server.sendall(data)
        _end(caller, server)

    def _let_through(self, size: int) -> bool:
        with self._changed:
            self.held = self.held or self._left < size
            self._changed.wait_for(lambda: self._closed or self._left >= size)
            self._left -= size
            return not self._closed

    def _answer(self, caller: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                caller.sendall(data)
        _end(caller, server)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def gate(target: str) -> Iterator[Gate]:
    made = Gate(target)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join(TIMEOUT_S)
