"""The parts of a server: checkpoint, models, device, tritonserver; chosen and checked before the start."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hiscore import checkpoint
from hiscore.launcher import preflight
from hiscore.launcher.device_choice import choose_device
from hiscore.launcher.distribution import Distribution, find_distribution
from hiscore.launcher.early_checks import check_early
from hiscore.launcher.errors import BadSetting
from hiscore.launcher.preflight import SHM_BYTES
from hiscore.launcher.repository import Change, changes, num_instances, select, shipped
from hiscore.models.stored_config import stored_config
from hiscore.models.support import (
    ENSEMBLES,
    choose_selector,
    context_limit,
    label_names,
    longest_context,
    servable,
)
from hiscore.settings import ServeSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A server that can be started.

    Attributes:
        left_out: Reasons not to load others that were asked for.
        device: The device of `scorer` and `decode`.
        changes: What the settings change in the config of each model.
    """

    checkpoint: Path
    models: tuple[str, ...]
    left_out: dict[str, str]
    device: Literal["cpu", "cuda"]
    distribution: Distribution
    repository: Path
    changes: Mapping[str, Change]


def choose(settings: ServeSettings) -> Choice:
    """Choose, and check all that can be checked before a weight is read, the quick checks first.

    Raises:
        LaunchError: A check fails.
        CheckpointError: There is no such checkpoint.
    """
    check_early(settings)
    distribution = find_distribution()
    preflight.check_installation(settings, distribution)
    repository = shipped()
    directory = checkpoint.resolve(settings.model)
    device, why = choose_device(settings.device)
    capabilities = servable(directory, settings.tensor_parallel, on_gpu=device == "cuda")
    models, left_out = select(settings.models, capabilities)
    for model, reason in left_out.items():
        log.warning("model %s is left out: %s", model, reason)
    log.info("serving %s from %s on %s (%s)", ", ".join(models), directory, device, why)
    if device == "cpu":
        log.info("two errors of Triton about CUDA follow, which mean no more than that: there is no GPU")
    processes = {"tokenizer": 1, **dict.fromkeys(ENSEMBLES, 0)}
    instances = sum(processes.get(model, num_instances(settings, device)) for model in models)
    preflight.check_shared_memory(instances * SHM_BYTES, preflight.free_shared_memory())
    try:
        if longest := longest_context(stored_config(directory)):
            context_limit(longest, settings.max_context)
        if "decode" in models:
            choose_selector(settings.selector, capabilities.selectors)
    except ValueError as error:
        raise BadSetting(str(error)) from None
    return Choice(
        directory,
        models,
        left_out,
        device,
        distribution,
        repository,
        changes(settings, device, models, label_names(directory)),
    )
