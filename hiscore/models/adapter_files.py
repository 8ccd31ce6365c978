"""An adapter's files: adapter_config.json, and the header of the tensors beside it.

Nothing here imports torch: the tokenizer and the HTTP API read it, too. Whatever would change a result and is not
computed is refused by its name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hiscore.models.errors import UnsupportedCheckpoint

CONFIG, WEIGHTS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
HEAD_TENSOR = "score.weight"
PAIR = re.compile(r"(.+)\.lora_([AB])\.weight")
KNOWN = (
    "peft_type", "task_type", "bias", "init_lora_weights", "r", "lora_alpha", "rank_pattern", "alpha_pattern",
    "use_rslora", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save",
    "alora_invocation_tokens",
    # Without effect: of training, of what `init_lora_weights` names, or of layers that no checkpoint here has.
    "base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version", "lora_dropout",
    "fan_in_fan_out", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core",
    "qalora_group_size", "ensure_weight_tying",
)  # fmt: skip
"""Keys of the config; any other that is set is refused."""
SERVED: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "task_type": (None, "CAUSAL_LM", "SEQ_CLS"),
    "bias": (None, "none"),
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
}
"""Values that are computed; other beginnings change the checkpoint's own weights as well."""


@dataclass(frozen=True)
class AdapterFacts:
    """Facts that validation needs of an adapter.

    Attributes:
        number: From 1 on, in the order of ADAPTERS.
        labels: Labels of a head of its own; 0: it reads the checkpoint's.
        invocation: Tokens from whose last occurrence on it computes; empty: it computes every token.
        first_label: The first of its labels among those of all adapters.
    """

    number: int
    labels: int
    invocation: tuple[int, ...]
    first_label: int = 0


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter's config, and the shapes of its tensors, named as in the model that was trained."""

    name: str
    directory: Path
    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, name: str, directory: Path) -> "AdapterFiles":
        """Read and check; raises `UnsupportedCheckpoint`, which names the adapter."""
        refused = f"adapter '{name}': "
        try:
            config = json.loads((directory / CONFIG).read_text("utf-8"))
            path = directory / WEIGHTS
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, path.stat().st_size)))
            header.pop("__metadata__", None)
            shapes = {tensor.removeprefix(PREFIX): tuple(header[tensor]["shape"]) for tensor in header}
            found = cls(name, directory, {**config}, shapes)
            reason = found._unserved()
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise UnsupportedCheckpoint(
                f"{refused}its directory has no {missing}, which PEFT's save_pretrained writes"
            ) from None
        # Whatever is raised for a file that is no safetensors file.
        except Exception as error:
            raise UnsupportedCheckpoint(f"{refused}{CONFIG} or {WEIGHTS} cannot be read: {error!r}") from None
        if reason:
            raise found.refused(reason)
        return found

    @property
    def labels(self) -> int:
        """Labels of its own head; 0: it has none."""
        return self.shapes.get(HEAD_TENSOR, (0,))[0]

    @property
    def numbers(self) -> int:
        """Count the numbers of all tensors."""
        return sum(map(prod, self.shapes.values()))

    @property
    def modules(self) -> list[str]:
        """Names of the linear layers that are adapted."""
        return sorted({found.group(1) for tensor in self.shapes if (found := PAIR.fullmatch(tensor))})

    def rank(self, module: str) -> int:
        return self.shapes[f"{module}.lora_A.weight"][0]

    def scale(self, module: str) -> float:
        """The factor of a module's product."""
        rank, c = self.rank(module), self.config
        alpha = _of_pattern(c.get("alpha_pattern"), module, c.get("lora_alpha", 8))
        return float(alpha / (rank**0.5 if c.get("use_rslora") else rank))

    def targets(self, module: str) -> bool:
        """Tell whether the config names a module. Source: peft.tuners.tuners_utils.check_target_module_exists."""
        c = self.config
        excluded, target = c.get("exclude_modules") or [], c.get("target_modules")
        if _names(excluded, module):
            return False
        if isinstance(target, str):
            return target.lower() == "all-linear" or _names(target, module)
        layers, patterns = c.get("layers_to_transform"), c.get("layers_pattern") or [r"[^.]*"]
        if not _names(target or [], module) or layers in (None, []):
            return _names(target or [], module)
        patterns = [patterns] if isinstance(patterns, str) else patterns
        within = (re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", module) for pattern in patterns)
        layer = next((int(found.group(1)) for found in within if found), None)
        return layer in ([layers] if isinstance(layers, int) else layers)

    def refused(self, reason: str) -> UnsupportedCheckpoint:
        return UnsupportedCheckpoint(f"adapter '{self.name}': {reason}")

    def _unserved(self) -> str | None:
        c, tensors = self.config, set(self.shapes)
        for key, served in SERVED.items():
            if c.get(key) not in served:
                return f"{CONFIG} has {key} {c[key]!r}, which is not computed" if key in c else f"no {key}"
        unknown = [key for key in c if key not in KNOWN and c[key]]
        if unknown:
            return f"{CONFIG} has '{unknown[0]}', which is not computed"
        invocation = c.get("alora_invocation_tokens")
        if invocation is not None and (not invocation or c.get("task_type") != "CAUSAL_LM"):
            return "alora_invocation_tokens needs at least one token, and task_type CAUSAL_LM"
        if not (modules := self.modules):
            return f"{WEIGHTS} holds no pair of lora_A and lora_B"
        wanted = {f"{module}.lora_{part}.weight" for module in modules for part in "AB"}
        if missing := sorted(wanted - tensors):
            return f"{WEIGHTS} has no tensor '{missing[0]}'"
        if others := sorted(tensors - wanted - {HEAD_TENSOR}):
            return f"tensor '{others[0]}' is not computed: linear layers and a head '{HEAD_TENSOR}' are"
        if self.labels and len(self.shapes[HEAD_TENSOR]) != 2:
            return f"'{HEAD_TENSOR}' has shape {list(self.shapes[HEAD_TENSOR])}, which is no matrix"
        if c.get("task_type") == "SEQ_CLS" and c.get("modules_to_save") and HEAD_TENSOR not in tensors:
            return f"{WEIGHTS} has no tensor '{HEAD_TENSOR}', the classifier's head"
        for module in modules:
            self.scale(module)
            rank = _of_pattern(c.get("rank_pattern"), module, c.get("r", 8))
            for part, of_rank in (("A", 0), ("B", 1)):
                shape = self.shapes[tensor := f"{module}.lora_{part}.weight"]
                if len(shape) != 2 or shape[of_rank] != rank:
                    return f"'{tensor}' has shape {list(shape)}, the config announces rank {rank}"
            if not self.targets(module):
                return f"{WEIGHTS} adapts '{module}', which target_modules of {CONFIG} does not name"
        return None


def read_adapters(directories: Mapping[str, Path]) -> dict[str, AdapterFacts]:
    """Read the facts of adapters, in order; raises `UnsupportedCheckpoint`."""
    found: dict[str, AdapterFacts] = {}
    first = 0
    for number, (name, directory) in enumerate(directories.items(), 1):
        each = AdapterFiles.read(name, directory)
        invocation = tuple(each.config.get("alora_invocation_tokens") or ())
        found[name] = AdapterFacts(number, each.labels, invocation, first)
        first += each.labels
    return found


def _names(given: Any, module: str) -> bool:
    """Tell whether a pattern, or a list of modules' ends, names a module."""
    if isinstance(given, str):
        return re.fullmatch(given, module) is not None
    return module in given or any(module.endswith(f".{end}") for end in given)


def _of_pattern(patterns: Mapping[str, Any] | None, module: str, otherwise: Any) -> Any:
    """Find the value that the first matching pattern gives. Source: peft.utils.other.get_pattern_key."""
    found = (value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module))
    return next(found, otherwise)
