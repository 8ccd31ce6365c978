"""The files in which sentence-transformers says how a cross-encoder scores: modules, activation, prompt, length.

What predict would do otherwise than it is done here is refused by name. Nothing here imports torch.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MODULES, SENTENCES, TRANSFORMER = (
    "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json",
)  # fmt: skip
TASKS = {
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "text-generation": ("logits", "causal_logits"),
    "any-to-any": ("logits", "causal_logits"),
}
"""The output of a transformer of each task, and the name under which modules read it."""
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Keys by which older versions switched each pooling on."""
HEAD_ACTIVATIONS = ("Identity", "Tanh", "GELU", "ReLU", "SiLU", "Sigmoid")
SCORE_ACTIVATIONS = ("Identity", "Sigmoid", "Tanh", "ReLU")
OF_SENTENCES = (
    "model_type", "__version__", "prompts", "default_prompt_name", "activation_fn", "keep_in_fp32_modules",
    "similarity_fn_name", "requirements",
)  # fmt: skip
OF_TRANSFORMER = (
    "transformer_task", "modality_config", "module_output_name", "processing_kwargs", "processor_kwargs",
    "max_seq_length", "do_lower_case",
    # These change nothing for pairs.
    "unpad_inputs", "query_length", "document_length", "query_expansion",
)  # fmt: skip
OF_CALLS = {"text": ("padding", "truncation", "max_length"), "common": ("return_tensors",)}
NO_VARIABLES = (
    "tools", "documents", "continue_final_message", "tokenize", "padding", "truncation", "max_length",
    "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "messages",
)  # fmt: skip
"""Arguments of apply_chat_template that are no variables of a template."""


class Refused(ValueError):
    """A file says what is not done here; the message names the file and the key."""


@dataclass(frozen=True)
class Module:
    """A module of a head: its class, its folder, and its config with the defaults that it has."""

    kind: str
    folder: str
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def modes(self) -> tuple[str, ...]:
        """The poolings of a Pooling, whose results are joined in this order."""
        return tuple(self.config["pooling_mode"])

    @property
    def reads(self) -> str:
        by_default = "token_embeddings" if self.kind == "Pooling" else "sentence_embedding"
        return str(self.config.get("module_input_name", by_default))

    @property
    def writes(self) -> str:
        by_kind = {"Pooling": "sentence_embedding", "LogitScore": "scores"}
        return by_kind.get(self.kind) or str(self.config.get("module_output_name") or self.reads)


@dataclass(frozen=True)
class CrossEncoderFiles:
    """The contents of the files; empty where they say nothing.

    Attributes:
        task: The task of the first module; empty without modules.json.
        head: The modules behind it.
        takes_messages: A chat template makes the prompts.
        structured: Messages have lists of parts, not texts; None: the template shows it.
        variables: Of the chat template; `chat_template` is its name or its text.
        activation: Name of the function over the score, and the file that says it.
        prompt: The default prompt, which predict puts before queries or gives to the chat template's system.
        length: Tokens to which predict cuts, and the file that says it.
        labels: Scores that a head behind hidden states makes; 0: there is no such head.
    """

    task: str = ""
    head: tuple[Module, ...] = ()
    takes_messages: bool = False
    structured: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    activation: tuple[str, str] = ("", "")
    prompt: str = ""
    length: tuple[int | None, str] = (None, "")
    labels: int = 0

    @property
    def label_ids(self) -> tuple[int, ...]:
        """The tokens of a LogitScore: relevant and, if it has one, not relevant."""
        ids = [
            each.config[key]
            for each in self.head
            if each.kind == "LogitScore"
            for key in ("true_token_id", "false_token_id")
        ]
        return tuple(each for each in ids if each is not None)


def read_cross_encoder(checkpoint: Path) -> CrossEncoderFiles:
    """Read what is there, or raise `Refused`: A file, a module or a key of one is none that is served."""
    of_model, stored = _read(checkpoint / SENTENCES, OF_SENTENCES), _read(checkpoint / "config.json")
    prompts, named = _part(SENTENCES, of_model, "prompts"), of_model.get("default_prompt_name")
    prompt = prompts.get(str(named), None if named else "") or ""
    if (named and named not in prompts) or not isinstance(prompt, str):
        raise Refused(f"{SENTENCES}: default_prompt_name {named!r} is none of its prompts, which are texts")
    files = CrossEncoderFiles(
        activation=_activation(of_model, stored), prompt=prompt, length=_length(checkpoint, stored)
    )
    entries = _json(checkpoint / MODULES, [])
    # CrossEncoder loads a classifier without the modules of another kind of model, such as an embedding's.
    others = of_model.get("model_type", "SentenceTransformer") != "CrossEncoder"
    name = str((stored.get("architectures") or [""])[0])
    if not entries or (others and name.endswith("Classification")):
        return files
    if of_model.get("model_type", "CrossEncoder") != "CrossEncoder":
        raise Refused(f"{SENTENCES}: model_type {of_model['model_type']!r} is not CrossEncoder")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise Refused(f"{MODULES} is not a list of modules")
    head = tuple(_module(checkpoint, *numbered) for numbered in enumerate(entries))[1:]
    return _with_transformer(replace(files, head=head), checkpoint, stored)


def _module(checkpoint: Path, index: int, entry: Mapping[str, Any]) -> Module:
    _known(MODULES, entry, ("idx", "name", "path", "type"))
    (library, _, kind), folder = str(entry.get("type")).rpartition("."), entry.get("path")
    if library.partition(".")[0] != "sentence_transformers" or (kind == "Transformer") != (index == 0):
        raise Refused(f"{MODULES}: module {index} is {entry.get('type')!r}, which is not served there")
    # Names of folders beside the file, and none for the first.
    if not isinstance(folder, str) or Path(folder).name != folder or (folder == "") != (index == 0):
        raise Refused(f"{MODULES}: the path of module {index} is {folder!r}")
    if index == 0:
        return Module(kind, folder)
    if (keys := KEYS.get(kind)) is None:
        raise Refused(f"{MODULES}: {kind} is none of {', '.join(KEYS)}, the modules that are served")
    name = f"{folder}/config.json"
    if not (checkpoint / name).is_file():
        raise Refused(f"{name} is missing")
    given = _read(checkpoint / name, (*keys, "word_embedding_dimension", *OLD_POOLINGS), name)
    if kind == "Pooling":
        given.setdefault("embedding_dimension", given.pop("word_embedding_dimension", None))
        old = [mode for key, mode in OLD_POOLINGS.items() if given.pop(key, False)]
        modes = given.get("pooling_mode", old or ["mean"])
        given["pooling_mode"] = [modes] if isinstance(modes, str) else modes
    _known(name, given, keys)
    config = {**keys, **given}
    for key, default in keys.items():
        if not _fits(key, config[key], default):
            raise Refused(f"{name}: {key} is {config[key]!r}, which is not served")
    if "activation_function" in keys:
        config["activation_function"] = _torch_class(name, config["activation_function"], HEAD_ACTIVATIONS)
    return Module(kind, folder, config)


def _with_transformer(
    files: CrossEncoderFiles, checkpoint: Path, stored: Mapping[str, Any]
) -> CrossEncoderFiles:
    """Add what the first module's config says, and check that the others fit behind it."""
    given = _read(checkpoint / TRANSFORMER, OF_TRANSFORMER)
    if (task := given.get("transformer_task", "feature-extraction")) not in TASKS:
        raise Refused(f"{TRANSFORMER}: transformer_task {task!r} is none of {', '.join(TASKS)}")
    modalities = _part(TRANSFORMER, given, "modality_config", ("text", "message", "image", "audio", "video"))
    calls = _part(
        TRANSFORMER, given, "processing_kwargs", (*OF_CALLS, "chat_template", "audio", "image", "video")
    )
    text, _ = (_part(TRANSFORMER, calls, key, keys) for key, keys in OF_CALLS.items())
    variables, (output, name) = _part(TRANSFORMER, calls, "chat_template"), TASKS[task]
    checks: list[tuple[str, object, Sequence[object]]] = [
        ("module_output_name", given.get("module_output_name", name), (name,)),
        ("do_lower_case", given.get("do_lower_case", False), (False,)),
        ("truncation", text.get("truncation", True), (True, "longest_first")),
        ("restore_suffix", variables.pop("restore_suffix", True), (True,)),
        (
            "an argument in chat_template",
            next(iter(sorted(variables.keys() & {*NO_VARIABLES})), None),
            (None,),
        ),
    ]
    for key in ("text", "message"):
        how = _part(TRANSFORMER, modalities, key, ("method", "method_output_name", "format"))
        checks += [
            (f"method of {key}", how.get("method", "forward"), ("forward",)),
            (f"method_output_name of {key}", how.get("method_output_name", output), (output,)),
            (f"format of {key}", how.get("format", "auto"), tuple(FORMATS)),
        ]
    for key, value, served in checks:
        if value not in served:
            raise Refused(f"{TRANSFORMER}: {key} is {value!r}, which is not served")
    of_tokenizer = _part(TRANSFORMER, given, "processor_kwargs", ("model_max_length",))
    lengths = text.get("max_length"), of_tokenizer.get("model_max_length"), given.get("max_seq_length")
    length = next((each for each in lengths if each is not None), None)
    if length is not None and not _is_size(length):
        raise Refused(f"{TRANSFORMER}: a length is {length!r}, not a positive whole number")
    files = replace(
        files,
        task=task,
        takes_messages="message" in modalities,
        structured=FORMATS[modalities.get("message", {}).get("format", "auto")],
        variables=variables,
        length=(length, TRANSFORMER) if length is not None else files.length,
    )
    return replace(files, labels=_scores(files, stored))


def _scores(files: CrossEncoderFiles, stored: Mapping[str, Any]) -> int:
    """Count the scores of a head behind hidden states; each module has to find what it reads."""
    known: dict[str, Any] = {TASKS[files.task][1]: stored.get("hidden_size", stored.get("dim"))}
    behind_hidden = files.task == "feature-extraction"
    for each in files.head:
        config, name = each.config, f"{each.folder}/config.json"
        if each.reads not in known or (each.reads == "token_embeddings") != (each.kind == "Pooling"):
            raise Refused(f"{name}: {each.kind} reads {each.reads!r}, which no module before it makes")
        if behind_hidden == (each.kind == "LogitScore"):
            raise Refused(f"{name}: {each.kind} behind a transformer for {files.task} is not served")
        sizes = {config[key] for key in ("embedding_dimension", "in_features", "dimension") if key in config}
        if sizes - {known[each.reads]}:
            raise Refused(
                f"{name}: it reads {max(sizes)} numbers, and {each.reads!r} has {known[each.reads]}"
            )
        size = config.get("out_features", known[each.reads])
        known[each.writes] = size * len(each.modes) if each.kind == "Pooling" else size
    last = files.head[-1] if files.head else Module("Transformer", "")
    if "scores" not in known or (files.head and last.writes != "scores"):
        where = f"{last.folder}/config.json" if last.folder else MODULES
        raise Refused(
            f"{where}: the last module, {last.kind}, makes no 'scores', which a cross-encoder's does"
        )
    return known["scores"] if behind_hidden else 0


def _activation(of_model: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, str]:
    of_config = _part("config.json", stored, "sentence_transformers")
    for file, given in (
        (SENTENCES, of_model.get("activation_fn")),
        ("config.json", of_config.get("activation_fn")),
        ("config.json", stored.get("sbert_ce_default_activation_function")),
    ):
        if given is not None:
            return _torch_class(file, given, SCORE_ACTIVATIONS), file
    return "", ""


def _torch_class(where: str, path: object, served: Sequence[str]) -> str:
    library, _, name = str(path).rpartition(".")
    if library.split(".")[:2] != ["torch", "nn"] or name not in served:
        raise Refused(f"{where}: activation {path!r} is none of torch.nn's {', '.join(served)}")
    return name


def _length(checkpoint: Path, stored: Mapping[str, Any]) -> tuple[int | None, str]:
    """Tokens to which the tokenizer cuts, within the model's positions."""
    longest = _read(checkpoint / "tokenizer_config.json").get("model_max_length")
    positions = stored.get("max_position_embeddings")
    # Where none is known, transformers writes 1e30.
    found = [(int(longest), "tokenizer_config.json")] if longest and longest < 1e9 else []
    if isinstance(positions, int) and _is_size(positions):
        found.append((positions, "config.json"))
    return min(found) if found else (None, "")


def _known(where: str, given: Mapping[str, Any], keys: Iterable[str]) -> None:
    if unknown := sorted(given.keys() - set(keys)):
        raise Refused(f"{where}: nothing here reads {unknown[0]!r}")


def _part(
    where: str, given: Mapping[str, Any], key: str, keys: Iterable[str] | None = None
) -> dict[str, Any]:
    """An object within another, of which no keys but these are read; empty if there is none."""
    part = given.get(key) or {}
    if not isinstance(part, dict):
        raise Refused(f"{where}: {key} is not an object")
    if keys is not None:
        _known(f"{where}: {key}", part, keys)
    return dict(part)


def _read(file: Path, keys: Iterable[str] | None = None, name: str = "") -> dict[str, Any]:
    return _part("", {name or file.name: _json(file, {})}, name or file.name, keys)


def _json(file: Path, otherwise: Any) -> Any:
    try:
        return json.loads(file.read_text("utf-8")) if file.is_file() else otherwise
    except ValueError as error:
        raise Refused(f"{file.name} is not JSON: {error}") from None


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def _fits(key: str, value: object, default: object) -> bool:
    """True if a value may stand in place of a default; of a size or a token that is `...`."""
    if key == "pooling_mode":
        return isinstance(value, list) and bool(value) and {*value} <= {*OLD_POOLINGS.values()}
    if key == "include_prompt":
        return value is True  # a prompt's tokens count as any others
    if key.endswith("_id"):
        return (value is None and default is None) or (type(value) is int and value >= 0)
    return (
        _is_size(value)
        if default is ...
        else isinstance(value, str | None if default is None else type(default))
    )


FORMATS = {"auto": None, "flat": False, "structured": True}
_NAMES = {"module_input_name": "sentence_embedding", "module_output_name": None}
KEYS: Mapping[str, Mapping[str, Any]] = {
    "LogitScore": {"true_token_id": ..., "false_token_id": None, "module_input_name": "causal_logits"},
    "Pooling": {"embedding_dimension": ..., "pooling_mode": ["mean"], "include_prompt": True},
    "Dense": {
        **{"in_features": ..., "out_features": ..., "bias": True, "use_residual": False},
        **{"activation_function": "torch.nn.Tanh", **_NAMES},
    },
    "LayerNorm": {"dimension": ...},
    "Normalize": _NAMES,
    "Dropout": {"dropout": 0.2},
}
"""Keys of the modules that are served, and their defaults; `...`: it has none."""
