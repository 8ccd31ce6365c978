"""The start of a model: its settings, its checkpoint, its device and its server."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
import triton_python_backend_utils as pb_utils

from hiscore.checkpoint import resolve
from hiscore.logs import configure_model
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.support import Capabilities, servable
from hiscore.server.run_directory import run_directory
from hiscore.server.server_resources import Instance, ServerResources, has_sharers
from hiscore.settings.models import MODEL_SETTINGS, AnySettings, read_settings, variables

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelStart(Generic[AnySettings]):
    """A model's settings and its place in the server.

    Attributes:
        name: Name of the model in the repository, which may be that of a copy.
        capabilities: Models that the checkpoint can serve.
        directory: The run directory of the server.
    """

    name: str
    version: str
    settings: AnySettings
    checkpoint: Path
    capabilities: Capabilities
    instance: Instance
    directory: Path
    repository: Path

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the model's metrics."""
        return {"model": self.name, "version": self.version}

    def resources(self) -> ServerResources:
        """Make what the model shares with the others of its server."""
        return ServerResources.in_server(
            self.directory, self.name, os.getppid(), self.instance, has_sharers(self.repository), os.getpid()
        )


def read_start(settings: type[AnySettings], args: dict[str, str]) -> ModelStart[AnySettings]:
    """Read the arguments of ``initialize``, and find the checkpoint.

    Raises:
        ValueError: A setting is wrong; the message names it.
        CheckpointError: There is no such checkpoint.
        UnsupportedCheckpoint: This model cannot serve it.
        RuntimeError: Triton cannot read the installed NumPy's arrays.
    """
    check_numpy()
    config = json.loads(args["model_config"])
    read = read_settings(settings, config)
    configure_model(read.log_format, args["model_name"])
    # The model's config, which callers can read, has its parameters alone.
    given = " ".join(f"{name}={value}" for name, value in variables(settings, dict(read)).items())
    log.info("settings of %s: %s", args["model_name"], given or "the defaults")
    checkpoint = resolve(read.model, progress=False)
    instance = instance_of(args, config)
    capabilities = servable(
        checkpoint, getattr(read, "tensor_parallel", 1), on_gpu=instance.device.startswith("cuda")
    )
    kind = next(name for name, declared in MODEL_SETTINGS.items() if declared is settings)
    if reason := capabilities.left_out.get(kind):
        raise UnsupportedCheckpoint(f"MODEL {read.model} cannot be served by this model: {reason}")
    return ModelStart(
        args["model_name"],
        args["model_version"],
        read,
        checkpoint,
        capabilities,
        instance,
        run_directory(os.getppid()),
        Path(args["model_repository"]),
    )


def check_numpy() -> None:
    """Refuse a NumPy whose arrays Triton's Python backend misreads, as old ones do with NumPy 2.

    Raises:
        RuntimeError: Outputs would be empty or wrong; the message names both versions.
    """
    sent = pb_utils.Tensor("probe", np.arange(3, dtype=np.int32))
    if pb_utils.Tensor.from_dlpack("probe", sent.to_dlpack()).as_numpy().tolist() != [0, 1, 2]:
        triton = os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "of this version")
        raise RuntimeError(
            f"the Python backend of Triton {triton} cannot read the arrays of NumPy {np.__version__}: install "
            "another NumPy for the first python3 on PATH (pip install 'numpy<2')"
        )


def instance_of(args: dict[str, str], config: Any) -> Instance:
    """Find an instance's place among a model's, from the arguments of ``initialize`` and the model's config.

    Raises:
        ValueError: The instance is neither on a GPU nor on the CPU.
    """
    kind = args["model_instance_kind"]
    if kind == "GPU":
        return Instance(f"cuda:{args['model_instance_device_id']}")
    if kind != "CPU":
        raise ValueError(f"an instance_group of KIND_{kind} is not served: KIND_GPU and KIND_CPU are")
    on_cpu = sum(group["count"] for group in config["instance_group"] if group["kind"] == "KIND_CPU")
    # Triton calls them MODEL_GROUP_NUMBER.
    return Instance("cpu", int(args["model_instance_name"].rpartition("_")[2]), on_cpu)
