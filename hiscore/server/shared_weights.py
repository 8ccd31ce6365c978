"""One copy of the weights for the models of a server that compute with the same ones.

`scorer` and `decode` are processes of their own. The first to come loads the weights and leaves in the server's
directory how to reach them; the other maps the same memory. On a GPU that is CUDA's memory between processes, by
torch's own reductions; on the CPU an anonymous file in memory (memfd), which is gone when its last process is.
When one process dies, so does the other: the watchdog restarts the whole server.
"""

import fcntl
import io
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from hiscore.server.run_directory import started

log = logging.getLogger(__name__)

W = TypeVar("W")
ALIGNMENT = 64


class SharedWeights:
    """Loads weights, or maps those that another model of the server has loaded; not shared without a directory."""

    def __init__(self, directory: Path | None = None, server: int | None = None) -> None:
        # A restarted server shares nothing with the one before.
        self._server = server or os.getppid()
        self._directory = directory / f"weights-{self._server}" if directory else None
        self._users: list[int] = []  # locked files: exclusively by the owner at its end, shared by the others
        self._exported: list[tuple[Path, Any]] = []

    @property
    def shares(self) -> bool:
        return self._directory is not None

    def load(self, key: str, load: Callable[[], W]) -> W:
        """Load weights once for all models that ask for the same `key`: device, dtype, format.

        The weights are any nest of dataclasses and tuples with tensors.
        """
        if self._directory is None:
            return load()
        self._directory.mkdir(exist_ok=True)
        path = self._directory / key
        with _locked(Path(f"{path}.lock")):
            if path.exists():
                try:
                    mapped: W = _Mapped(io.BytesIO(path.read_bytes())).load()
                except (OSError, RuntimeError) as error:
                    log.warning(
                        "the weights of the other model cannot be mapped, a copy is loaded: %s", error
                    )
                    return load()
                self._users.append(_open(Path(f"{path}.users"), fcntl.LOCK_SH))
                log.info("the weights are those of the other model, mapped")
                return mapped
            weights = load()
            export = _Export()
            export.dump(weights)
            new = Path(f"{path}.new")
            new.write_bytes(export.bytes)
            new.rename(path)
            if not export.in_memory_file:
                self._exported.append((path, weights))
                return weights
            self._exported.append((path, None))
        # Ours are a second copy now: take the shared ones, too.
        del weights
        own: W = _Mapped(io.BytesIO(path.read_bytes())).load()
        return own

    def close(self) -> None:
        """Let the weights go; those of this process once nobody else computes with them, or the server is gone."""
        for users in self._users:
            os.close(users)
        for path, _ in self._exported:
            users = _open(Path(f"{path}.users"), None)
            if not _try_lock(users):
                log.info(
                    "other models compute with these weights: their memory is free once those are unloaded"
                )
                while not _try_lock(users) and started(self._server):
                    time.sleep(0.05)
            path.unlink(missing_ok=True)
            os.close(users)
        self._exported, self._users = [], []


class _Export(pickle.Pickler):
    """Pickles weights with tensors by reference: to CUDA memory, or to a file in memory that it fills."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        super().__init__(self._buffer)
        self._file = -1
        self._size = 0
        self._places: dict[int, int] = {}  # by the address of a storage

    @property
    def bytes(self) -> bytes:
        return self._buffer.getvalue()

    @property
    def in_memory_file(self) -> bool:
        """True if tensors were copied to a file in memory."""
        return self._file >= 0

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        if obj.is_cuda:
            return "cuda", reductions.reduce_tensor(obj)
        storage = obj.untyped_storage()
        if storage.data_ptr() not in self._places:
            self._places[storage.data_ptr()] = self._append(storage)
        place = self._places[storage.data_ptr()]
        file = f"/proc/{os.getpid()}/fd/{self._file}", storage.nbytes()
        return "file", (*file, place, obj.dtype, obj.storage_offset(), tuple(obj.shape), obj.stride())

    def _append(self, storage: torch.UntypedStorage) -> int:
        """Copy a storage to the end of the file, which stays open as long as this process lives."""
        if self._file < 0:
            self._file = os.memfd_create("hiscore-weights")
        place = -(-self._size // ALIGNMENT) * ALIGNMENT
        numbers: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        view = memoryview(numbers)
        written = 0
        while written < len(view):
            written += os.pwrite(self._file, view[written:], place + written)
        self._size = place + storage.nbytes()
        return place


class _Mapped(pickle.Unpickler):
    """Reads what `_Export` has written. The file comes from this server's own directory."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._storages: dict[str, Any] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        kind, how = pid
        if kind == "cuda":
            rebuild, arguments = how
            tensor: Tensor = rebuild(*arguments)
            return tensor
        path, _, place, dtype, offset, shape, stride = how
        if path not in self._storages:
            self._storages[path] = torch.UntypedStorage.from_file(path, True, os.stat(path).st_size)
        start = place // dtype.itemsize + offset
        return torch.empty(0, dtype=dtype).set_(self._storages[path], start, shape, stride)


def _open(path: Path, lock: int | None) -> int:
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    if lock is not None:
        fcntl.flock(file, lock)
    return file


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = _open(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(file)
