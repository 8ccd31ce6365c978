"""The model repository that tritonserver reads: ours as it stands, but for configs in which a value differs."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hiscore.launcher.device_choice import has_gpus, visible_gpus
from hiscore.launcher.errors import BadSetting
from hiscore.models.support import ENSEMBLES, MODELS, Capabilities
from hiscore.settings import MODEL_SETTINGS, ServeSettings
from hiscore.settings.models import variables

# A link in a checkout, a directory where hiscore is installed.
SHIPPED = (Path(__file__).parents[1] / "model_repository").resolve()
CONFIG, LABELS = "config.pbtxt", "labels.txt"
BATCH_CALLS = re.compile(r"^max_batch_size: (\d+)$", re.MULTILINE)
STEPS = {"tokenizer", "scorer"}
"""The models that ensembles call."""
SHARED_BATCH_CALLS = 8
"""Calls that Triton hands at once to one of several scorers: the others must get some of those that wait, too."""


@dataclass(frozen=True)
class Change:
    """Values of a model's config that are not the shipped ones.

    Attributes:
        batch_calls: ``max_batch_size``; None: as shipped.
        instances: The ``instance_group``; empty: Triton's default, one on each GPU, else one on the CPU.
        labels: Names for ``labels.txt``; empty: as shipped.
    """

    batch_calls: int | None = None
    instances: str = ""
    labels: tuple[str, ...] = ()


def shipped() -> Path:
    """Find the directory of the models: where hiscore is installed apart from it, a variable names it.

    Raises:
        BadSetting: A model is missing.
    """
    source = Path(os.environ.get("HISCORE_MODEL_REPOSITORY") or SHIPPED)
    for model in MODELS:
        if not (config := source / model / CONFIG).is_file():
            raise BadSetting(
                f"{config} is missing: HISCORE_MODEL_REPOSITORY must name hiscore's model_repository/"
            )
    return source


def write_repository(source: Path, target: Path, changes: Mapping[str, Change]) -> None:
    """Make a repository of links to the models of `source`; those that change get a config of their own."""
    for model, change in changes.items():
        config = source / model / CONFIG
        text = config.read_text(encoding="utf-8")
        changed = changed_config(text, change)
        own = {CONFIG: changed} if changed != text else {}
        if change.labels:
            own[LABELS] = "".join(f"{' '.join(name.split())}\n" for name in change.labels)
        if not own:
            (target / model).symlink_to(config.parent.resolve())
            continue
        (target / model).mkdir()
        for part in config.parent.iterdir():
            if part.name not in own:
                (target / model / part.name).symlink_to(part.resolve())
        for name, contents in own.items():
            (target / model / name).write_text(contents, encoding="utf-8")


def changed_config(text: str, change: Change) -> str:
    """Write a change into a ``config.pbtxt``."""
    if change.batch_calls is not None:
        text = BATCH_CALLS.sub(f"max_batch_size: {change.batch_calls}", text)
    if change.instances:
        why = "# From DEVICE, CPU_INSTANCES and TENSOR_PARALLEL."
        text += f"\n{why}\ninstance_group [ {{ {change.instances} }} ]\n"
    return text


def changes(
    settings: ServeSettings,
    device: Literal["cpu", "cuda"],
    models: tuple[str, ...],
    labels: tuple[str, ...] = (),
) -> dict[str, Change]:
    """Find what the settings, and the names of a classifier's labels, change in each model's directory."""
    several = num_instances(settings, device) > 1
    calls = min(settings.max_batch_calls, SHARED_BATCH_CALLS) if several else settings.max_batch_calls
    instances = instances_on(device, settings.tensor_parallel, settings.cpu_instances)
    of_models = {
        # No ensemble may have larger batches than its step.
        "score": Change(calls),
        "classify": Change(calls, labels=labels),
        "tokenizer": Change(settings.max_batch_calls),
        "scorer": Change(calls, instances),
        "decode": Change(instances=instances),
    }
    return {model: of_models[model] for model in models}


def with_settings(inherited: Mapping[str, str], settings: ServeSettings, checkpoint: Path) -> dict[str, str]:
    """Make the environment from which the models read their settings, whatever the inherited one says of them."""
    of_models = MODEL_SETTINGS.values()
    names = {name.upper() for declared in of_models for name in declared.model_fields}
    made = {name: value for name, value in inherited.items() if name not in names}
    given = dict(settings) | {"model": str(checkpoint)}
    for declared in of_models:
        made |= variables(declared, given)
    return made


def num_instances(settings: ServeSettings, device: Literal["cpu", "cuda"]) -> int:
    """Count the instances that `scorer` has, and `decode` likewise."""
    return settings.cpu_instances if device == "cpu" else visible_gpus() // settings.tensor_parallel


def instances_on(device: Literal["cpu", "cuda"], ranks: int, on_cpu: int) -> str:
    """Place the instances of a model, `on_cpu` or one on the first of each group of `ranks` GPUs.

    Returns:
        The fields of an ``instance_group``; empty where Triton does so by itself.
    """
    if device == "cpu":
        return "" if on_cpu == 1 and not has_gpus() else f"kind: KIND_CPU count: {on_cpu}"
    if ranks == 1:
        return ""
    return f"kind: KIND_GPU count: 1 gpus: [ {', '.join(map(str, range(0, visible_gpus(), ranks)))} ]"


def select(requested: str, capabilities: Capabilities) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the models to load, and give the reason for each requested one that is left out.

    `requested` has names separated by commas; empty: all, but `classify` for classifiers alone.

    Raises:
        BadSetting: An unknown name, an ensemble without its steps, or nothing is left.
    """
    served = tuple(name for name in MODELS if name != "classify" or name in capabilities.models)
    names = tuple(dict.fromkeys(filter(None, (name.strip() for name in requested.split(","))))) or served
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        raise BadSetting(f"MODELS names '{unknown[0]}': known are {', '.join(MODELS)}")
    if (ensembles := set(names) & set(ENSEMBLES)) and not set(names) >= STEPS:
        raise BadSetting(f"MODELS names {min(ensembles)}, which needs tokenizer and scorer: name all three")
    left_out = {name: capabilities.left_out[name] for name in names if name not in capabilities.models}
    chosen = tuple(name for name in names if name not in left_out)
    # A tokenizer alone is served only to those who ask for it alone.
    computing = {"scorer", "decode"}
    if not chosen or (computing & set(names) and not computing & set(chosen)):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise BadSetting(f"no model is left to serve ({reasons})")
    return chosen, left_out


def main() -> int:
    """Copy the repository for another Triton. The exit code is 2 if the directory holds something."""
    about = "The model repository in a directory of its own, for another Triton."
    parser = argparse.ArgumentParser(prog="hiscore repository", description=about)
    parser.add_argument("directory", type=Path, help="a new or empty directory")
    directory: Path = parser.parse_args().directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        print(f"error: {directory} holds something: name a new directory", file=sys.stderr)
        return 2
    shutil.copytree(SHIPPED, directory, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    print(f"tritonserver --model-repository={directory.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
