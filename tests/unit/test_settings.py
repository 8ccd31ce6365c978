"""The settings of decode's caches: bounds that depend on each other, each with its message."""

from typing import Any

import pytest
from pydantic import ValidationError

from hiscore.settings import DecodeSettings, ServeSettings, from_model_config

DECODE: dict[str, Any] = {"checkpoint": "/a", "selector": "quest"}


@pytest.mark.parametrize(
    ("given", "where", "says"),
    [
        ({"sparse_top_k": 8_192}, "device_buffer_size", "must be at least SPARSE_TOP_K, which is 8192"),
        ({"device_buffer_size": 2_047}, "device_buffer_size", "must be at least SPARSE_TOP_K, which is 2048"),
        ({"backup_ring": 2_049}, "backup_ring", "must be at most SPARSE_TOP_K, which is 2048"),
        ({"backup_ring": 0}, "backup_ring", "greater than 0"),
        ({"sparse_top_k": 0}, "sparse_top_k", "greater than 0"),
        ({"selector": "best"}, "selector", "'quest'"),
        ({"backup": "never"}, "backup", "'ring', 'deferred' or 'blocking'"),
        ({"host_kv_bytes": -1}, "host_kv_bytes", "greater than or equal to 0"),
        ({"device_kv_bytes": -1}, "device_kv_bytes", "greater than or equal to 0"),
        ({"quest_dense_layers": -1}, "quest_dense_layers", "greater than or equal to 0"),
        ({"max_streams": -1}, "max_streams", "greater than or equal to 0"),
    ],
)
@pytest.mark.parametrize("settings", [ServeSettings, DecodeSettings])
def test_a_setting_out_of_bounds_is_named_with_its_bound(
    settings: Any, given: dict[str, Any], where: str, says: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**({} if settings is ServeSettings else DECODE) | given)
    (error,) = refused.value.errors()
    assert error["loc"] == (where,)
    assert says in error["msg"]


def test_bounds_of_a_selection_do_not_bind_where_nothing_is_selected() -> None:
    given = {"selector": "dense", "sparse_top_k": 8, "device_buffer_size": 4, "backup_ring": 16}
    assert DecodeSettings(**DECODE | given).backup_ring == 16
    assert ServeSettings(**given).device_buffer_size == 4
    # Nor the ring's where the backup has none.
    sizes = {"sparse_top_k": 8, "device_buffer_size": 8, "backup_ring": 16}
    assert DecodeSettings(**DECODE | sizes | {"backup": "blocking"}).sparse_top_k == 8


def test_the_environment_is_read_and_a_models_config_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELECTOR", "exact")
    monkeypatch.setenv("SPARSE_TOP_K", "64")
    monkeypatch.setenv("BACKUP", "deferred")
    settings = ServeSettings()
    assert (settings.selector, settings.sparse_top_k, settings.backup) == ("exact", 64, "deferred")
    config = '{"parameters": {"checkpoint": {"string_value": "/a"}, "selector": {"string_value": "dsa"}}}'
    assert from_model_config(DecodeSettings, config).selector == "dsa"
    with pytest.raises(ValidationError, match="max_items"):
        from_model_config(DecodeSettings, config.replace('"selector"', '"max_items"'))
