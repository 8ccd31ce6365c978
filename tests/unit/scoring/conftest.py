import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def request_reader(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, where a request is a dictionary of its tensors."""

    def tensor(request: Any, name: str) -> Any:
        values = request.tensors.get(name)
        return None if values is None else SimpleNamespace(as_numpy=lambda: values, is_cpu=lambda: True)

    backend = SimpleNamespace(get_input_tensor_by_name=tensor)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)  # type: ignore[arg-type]
    for name in ("hiscore.edge.triton_io", "hiscore.scoring.request_reader"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("hiscore.scoring.request_reader")
