"""Settings: bounds with their messages, the environment, what models read, and the page that lists them."""

import re
import subprocess
import sys
from collections import Counter
from inspect import get_annotations
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hiscore.settings import (
    DEFAULT_MODEL,
    MODEL_SETTINGS,
    DecodeSettings,
    ScorerSettings,
    ServeSettings,
    TokenizerSettings,
    read_settings,
)
from hiscore.settings.groups import Settings
from tools.settings_page import page


@pytest.mark.parametrize(
    ("given", "where", "says"),
    [
        ({"sparse_top_k": 8_192}, "device_buffer_size", "must be at least SPARSE_TOP_K, which is 8192"),
        ({"device_buffer_size": 2_047}, "device_buffer_size", "must be at least SPARSE_TOP_K, which is 2048"),
        ({"backup_ring": 2_049}, "backup_ring", "must be at most SPARSE_TOP_K, which is 2048"),
        ({"backup_ring": 0}, "backup_ring", "greater than 0"),
        ({"sparse_top_k": 0}, "sparse_top_k", "greater than 0"),
        ({"selector": "best"}, "selector", "'quest'"),
        ({"host_kv_bytes": -1}, "host_kv_bytes", "greater than or equal to 0"),
        ({"device_kv_bytes": -1}, "device_kv_bytes", "greater than or equal to 0"),
        ({"max_streams": -1}, "max_streams", "greater than or equal to 0"),
        ({"prefix_cache": "maybe"}, "prefix_cache", "must be auto, on or off"),
    ],
)
@pytest.mark.parametrize("settings", [ServeSettings, DecodeSettings])
def test_a_setting_out_of_bounds_is_named_with_its_bound(
    settings: Any, given: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**given)
    (error,) = refused.value.errors()
    assert error["loc"] == (where,)
    assert says in error["msg"]


def test_bounds_that_depend_on_each_other_may_be_met_exactly() -> None:
    given = {"sparse_top_k": 64, "device_buffer_size": 64, "backup_ring": 64}
    assert DecodeSettings(**given).backup_ring == 64


def test_bounds_of_a_selection_do_not_bind_where_nothing_is_selected() -> None:
    given = {"selector": "dense", "sparse_top_k": 8, "device_buffer_size": 4, "backup_ring": 16}
    assert DecodeSettings(**given).backup_ring == 16
    assert ServeSettings(**given).device_buffer_size == 4


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELECTOR", "dense")
    monkeypatch.setenv("SPARSE_TOP_K", "64")
    monkeypatch.setenv("BACKUP_RING", "16")
    monkeypatch.setenv("HEALTH_PORT", "")  # empty: as if not set
    settings = ServeSettings()
    assert (settings.selector, settings.sparse_top_k, settings.backup_ring) == ("dense", 64, 16)
    assert settings.health_port is None


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("auto", "auto"),
        ("true", True),
        ("on", True),
        ("1", True),
        ("false", False),
        ("off", False),
        ("0", False),
    ],
)
def test_a_prefix_cache_is_on_or_off_or_for_the_checkpoint_to_say(
    word: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFIX_CACHE", word)
    for read in (ServeSettings().prefix_cache, read_settings(DecodeSettings, {}).prefix_cache):
        assert read is value or read == value == "auto"


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("MODELS", "auto", ""),
        ("MAX_CONTEXT", "auto", None),
        ("MAX_BATCH_TOKENS", "auto", None),
        ("QUERY_CACHE_BYTES", "auto", None),
        ("QUERY_CACHE_BYTES", "off", 0),
        ("HOST_KV_BYTES", "auto", 0),
        ("MAX_STREAMS", "auto", 0),
        ("API_PORT", "off", None),
        ("API_PORT", "", None),
        ("API_ADDRESS", "auto", None),
        ("API_KEYS_FILE", "off", None),
        ("TRACE_URL", "off", None),
        ("CANARY_SECONDS", "off", 0),
        ("MAX_RESTARTS", "off", 0),
        ("GENERATION_CONFIG", "off", "off"),
        ("GENERATION_CONFIG", "none", "off"),  # of the past
        ("PROMPT_TEMPLATE", "auto", ""),
    ],
)
def test_words_say_what_is_chosen_and_what_is_off(
    name: str, word: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, word)
    assert getattr(ServeSettings(), name.lower()) == value


@pytest.mark.parametrize(("name", "word"), [("MAX_CONTEXT", "off"), ("CANARY_SECONDS", "auto")])
def test_control_no_other_word_is_read(name: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, word)
    with pytest.raises(ValidationError, match=name.lower()):
        ServeSettings()


@pytest.mark.parametrize(("port", "allowed"), [(-1, False), (0, True), (65_535, True), (65_536, False)])
@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port", "health_port"])
def test_ports_have_bounds(name: str, port: int, allowed: bool) -> None:
    given: dict[str, Any] = {name: port}
    if allowed:
        assert getattr(ServeSettings(**given), name) == port
    else:
        with pytest.raises(ValidationError):
            ServeSettings(**given)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_itmes"):
        ServeSettings(max_itmes=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://host:4318/v1/traces", True),
        ("https://host", True),
        ("ftp://host", False),
        ("http://", False),
        ("host:4318", False),
        ("http://user:password@host", False),
    ],
)
def test_an_address_for_traces_is_a_url_without_a_password(url: str, allowed: bool) -> None:
    if allowed:
        assert ServeSettings(trace_url=url).trace_url == url
    else:
        with pytest.raises(ValidationError, match="without a user or a password"):
            ServeSettings(trace_url=url)


def config(**parameters: str) -> dict[str, Any]:
    """A model's config as Triton gives it to the model, as far as it has parameters."""
    return {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}


@pytest.mark.parametrize("declared", MODEL_SETTINGS.values())
def test_a_parameter_goes_before_the_environment_and_that_before_the_default(
    declared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_settings(declared, {}).max_queue == 1_024
    monkeypatch.setenv("MAX_QUEUE", "7")
    monkeypatch.setenv("MODEL", "")  # empty: as if not set
    read = read_settings(declared, config(EXECUTION_ENV_PATH="/of/triton"))
    assert (read.max_queue, read.model) == (7, DEFAULT_MODEL)
    read = read_settings(declared, config(MAX_QUEUE="8", MODEL="org/name", QUEUE_TIMEOUT_S=""))
    assert (read.max_queue, read.model, read.queue_timeout_s) == (8, "org/name", 600)


@pytest.mark.parametrize(
    ("declared", "parameters", "says"),
    [
        (TokenizerSettings, {"MAX_ITMES": "3"}, "parameter 'MAX_ITMES' of config.pbtxt is none of"),
        (TokenizerSettings, {"DTYPE": "auto"}, "parameter 'DTYPE' of config.pbtxt is none of"),
        (TokenizerSettings, {"max_items": "3"}, "parameter 'max_items' of config.pbtxt is none of"),
        (ScorerSettings, {"MAX_ITEMS": "0"}, "MAX_ITEMS: Input should be greater than 0, not '0'"),
        (ScorerSettings, {"MAX_ITEMS": "x", "DTYPE": "y"}, "MAX_ITEMS: .*; DTYPE: "),
        (DecodeSettings, {"DEVICE_BUFFER_SIZE": "7"}, "DEVICE_BUFFER_SIZE: .*SPARSE_TOP_K, which is 2048"),
    ],
)
def test_a_wrong_parameter_is_named(declared: Any, parameters: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_settings(declared, config(**parameters))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("tone", "give 'tone' one directory: ''"),
        ("tone=/nowhere", "give 'tone' one directory: '/nowhere' is there twice, or none"),
        ("tone=.,tone=..", "give 'tone' one directory: '..' is there twice"),
        *(
            (f"{name}=.", f"'{name}' cannot be a name")
            for name in ("", "../x", "a/b", "a b", "-x", "scorer", "x" * 65)
        ),
        (",".join(f"a{number}=." for number in range(2_048)), "at most 2047 adapters"),
    ],
)
def test_wrong_adapters_are_named(given: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"ADAPTERS: must.*{re.escape(says)}"):
        read_settings(ScorerSettings, config(ADAPTERS=given))


def test_adapters_are_directories_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for each model, wherever that is started."""
    monkeypatch.setenv("ADAPTERS", " tone=. ,harm-2.1=..,")
    for declared in (TokenizerSettings, ScorerSettings, ServeSettings):
        found = declared().adapter_directories
        assert list(found.items()) == [("tone", Path.cwd()), ("harm-2.1", Path.cwd().parent)]
        assert declared(adapters=declared().adapters).adapter_directories == found
    assert ServeSettings(adapters="off").adapter_directories == {}


def test_every_setting_is_declared_once_and_described() -> None:
    groups = [group for group in ServeSettings.__mro__ if issubclass(group, Settings)]
    declared = Counter(name for group in groups for name in get_annotations(group))
    for constant in ("section", "max_labels"):
        del declared[constant]
    assert set(declared) == set(ServeSettings.model_fields)
    assert set(declared.values()) == {1}
    assert [name for name, field in ServeSettings.model_fields.items() if not field.description] == []


def test_there_are_at_most_51() -> None:
    """Another one takes the place of one that nobody sets (CONTRIBUTING.md)."""
    assert len(ServeSettings.model_fields) <= 51


def test_as_many_tokens_wait_as_four_of_the_largest_calls_have() -> None:
    settings = ScorerSettings()
    assert settings.max_queue_tokens == 16_000_000
    assert settings.model_copy(update={"max_call_tokens": 5}).max_queue_tokens == 20


def test_the_page_names_every_setting_with_default_and_values() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert sorted(row.split("`")[1] for row in rows) == sorted(map(str.upper, ServeSettings.model_fields))
    starts = {row.split("`")[1]: row for row in rows}
    assert starts["TLS_CERT"].startswith("| `TLS_CERT` | `off` | `off`, path |")
    assert starts["HTTP_PORT"].startswith("| `HTTP_PORT` | `8000` | 0 to 65535 |")
    assert starts["HEALTH_PORT"].startswith("| `HEALTH_PORT` | `off` | `off`, 0 to 65535 |")
    assert starts["MAX_ITEMS"].startswith("| `MAX_ITEMS` | `10000` | 1 or more |")
    assert starts["CANARY_SECONDS"].startswith("| `CANARY_SECONDS` | `30` | `off`, 1 or more |")
    assert starts["ALLOW_KNOWN_CVES"].startswith("| `ALLOW_KNOWN_CVES` | `off` | `on`, `off` |")
    assert starts["GENERATION_CONFIG"].startswith("| `GENERATION_CONFIG` | `off` | `off`, `checkpoint` |")
    assert starts["PREFIX_CACHE"].startswith("| `PREFIX_CACHE` | `auto` | `auto`, `on`, `off` |")
    assert starts["MODELS"].startswith("| `MODELS` | `auto` | `auto`, text |")
    sections = re.findall("^## (.*)$", page(), re.MULTILINE)
    assert sections == list(dict.fromkeys(sections))
    assert sections[0] == "You will set these"
    assert page().partition("\n## Model and device")[0].count("\n| `") == 20
    assert "Decoding" in sections


def test_settings_are_read_without_torch() -> None:
    code = "import sys, hiscore.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
