"""The manifests, without a cluster: against the API's schemas, kustomize's rules, and each other."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hiscore.checkpoint import CheckpointError, check_digests, resolve
from hiscore.launcher import api
from hiscore.launcher.child import GROUP_SECONDS
from hiscore.launcher.health import answer
from hiscore.launcher.preflight import SHM_BYTES
from hiscore.launcher.server import GRACE_SECONDS
from hiscore.models.support import MODELS
from hiscore.settings import ServeSettings
from tests.support.deployment import DOCKER, KUBERNETES, documents

# The oldest that docs/deployment.md names, and the newest that the schemas know.
VERSIONS = ["1.30", "1.37"]
BASE = KUBERNETES / "base"
MONITORING = KUBERNETES / "monitoring"
API = KUBERNETES / "api"
MODEL = KUBERNETES / "model"
OVERLAYS = sorted((KUBERNETES / "overlays").iterdir())
COMPONENTS = sorted((KUBERNETES / "components").iterdir())
# How long a client or its DNS server may go on using an answer: CoreDNS's default, in seconds.
DNS_SECONDS = 30
GI = 2**30

BEHAVIOUR = {
    "stabilizationWindowSeconds": None,
    "policies": [{"type": None, "value": None, "periodSeconds": None}],
}
BOTH_WAYS = {"scaleUp": BEHAVIOUR, "scaleDown": BEHAVIOUR}
PROMETHEUS = dict.fromkeys(("serverAddress", "query", "threshold", "ignoreNullValues"))
# The parts of other projects' resources that we use, down to fields of any content (None); [] is a list of such.
SHAPES: dict[str, Any] = {
    "ScaledObject": {
        "scaleTargetRef": {"name": None},
        "minReplicaCount": None,
        "maxReplicaCount": None,
        "pollingInterval": None,
        "fallback": {"failureThreshold": None, "replicas": None, "behavior": None},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": BOTH_WAYS}},
        "triggers": [{"type": None, "metricType": None, "metadata": PROMETHEUS}],
    },
    "PodMonitor": {
        "selector": {"matchLabels": None},
        "podMetricsEndpoints": [
            {"port": None, "interval": None, "relabelings": [{"sourceLabels": None, "targetLabel": None}]}
        ],
        "podTargetLabels": None,
    },
}


def strangers(value: Any, shape: Any, path: str = "spec") -> Iterator[str]:
    """Where a value has a field that its shape has not."""
    if isinstance(shape, list):
        for item in value:
            yield from strangers(item, shape[0], path)
    elif shape is not None:
        yield from (f"{path}.{key}" for key in value.keys() - shape.keys())
        for key in value.keys() & shape.keys():
            yield from strangers(value[key], shape[key], f"{path}.{key}")


def check(document: dict[str, Any], version: str) -> None:
    """Validate a resource strictly: a field that the API does not know is an error, too."""
    if document["kind"] in SHAPES:
        assert list(strangers(document["spec"], SHAPES[document["kind"]])) == []
    else:
        kubernetes_validate.validate(document, version, strict=True)


def resources(directory: Path) -> list[dict[str, Any]]:
    """What a kustomization names itself, bases left out."""
    kustomization = documents(directory / "kustomization.yaml")[0]
    files = [directory / name for name in kustomization["resources"] if name.endswith(".yaml")]
    return [document for file in files for document in documents(file)]


def only(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = (document for document in found if document["kind"] == kind)
    return document


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    (one,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(one, dict)
    return one


def environment(one: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in one["env"]}


def gibibytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi"))


def render(overlay: Path) -> list[dict[str, Any]]:
    """What kustomize makes of an overlay."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed, and no package registry of Python or Debian has a current one")
    done = subprocess.run([kubectl, "kustomize", overlay], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("version", VERSIONS)
def test_base_and_overlays_follow_the_schemas(version: str) -> None:
    found = [document for directory in (BASE, API, MODEL, *OVERLAYS) for document in resources(directory)]
    assert {"Deployment", "NetworkPolicy", "PodMonitor", "ScaledObject"} <= {each["kind"] for each in found}
    for document in found:
        check(document, version)


def test_control_an_unknown_field_is_noticed() -> None:
    deployment = only(resources(BASE), "Deployment")
    container(deployment)["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        check(deployment, VERSIONS[0])
    scaled = only(resources(OVERLAYS[0]), "ScaledObject")
    scaled["spec"]["triggers"][0]["metadata"]["treshold"] = "1"
    with pytest.raises(AssertionError, match="treshold"):
        check(scaled, VERSIONS[0])


def test_every_file_is_used() -> None:
    used = set()
    for directory in (BASE, MONITORING, API, MODEL, *OVERLAYS, *COMPONENTS):
        kustomization = documents(directory / "kustomization.yaml")[0]
        named = [
            *kustomization.get("resources", []),
            *(patch["path"] for patch in kustomization.get("patches", [])),
            *kustomization.get("configurations", []),
        ]
        paths = [(directory / name).resolve() for name in named]
        assert [path for path in paths if not path.exists()] == []
        used |= {directory / "kustomization.yaml", *paths}
    assert {path for path in KUBERNETES.rglob("*") if path.is_file()} == used - {BASE}


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_patches_meet_what_is_there(overlay: Path) -> None:
    base = {(document["kind"], document["metadata"]["name"]): document for document in resources(BASE)}
    for directory in (overlay, *COMPONENTS):
        for patch in documents(directory / "kustomization.yaml")[0]["patches"]:
            (document,) = documents(directory / patch["path"])
            target = base[document["kind"], document["metadata"]["name"]]
            # A container of another name would be a second one.
            if document["kind"] == "Deployment" and "containers" in document["spec"]["template"]["spec"]:
                assert container(document)["name"] == container(target)["name"]
    scaled = only(resources(overlay), "ScaledObject")
    assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in base


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_rendered_overlay_holds_together(overlay: Path) -> None:
    found = render(overlay)
    for document in found:
        check(document, VERSIONS[0])
        assert document["metadata"]["name"] == f"hiscore-{overlay.name}"
    labels = {"app.kubernetes.io/name": "hiscore", "app.kubernetes.io/component": overlay.name}
    deployment = only(found, "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"] == labels
    # Everything that selects pods selects those of this role alone.
    assert only(found, "Service")["spec"]["selector"] == labels
    for kind, key in (
        ("Deployment", "selector"),
        ("PodDisruptionBudget", "selector"),
        ("PodMonitor", "selector"),
        ("NetworkPolicy", "podSelector"),
    ):
        assert only(found, kind)["spec"][key] == {"matchLabels": labels}
    # But a client is of no role.
    client = only(found, "NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"]
    assert overlay.name not in str(client)
    scaled = only(found, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert f'/{deployment["metadata"]["name"]}"' in scaled["triggers"][0]["metadata"]["query"]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    assert account == only(found, "ServiceAccount")["metadata"]["name"]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_roles_name_settings_and_models_that_there_are(
    overlay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name.upper() for name in ServeSettings.model_fields}
    patch = environment(container(documents(overlay / "deployment.yaml")[0]))
    both = environment(container(only(resources(BASE), "Deployment"))) | patch
    assert set(both) - known == set()
    for name, value in both.items():
        monkeypatch.setenv(name, value)
    settings = ServeSettings()
    # A role that does not score has nothing to offer over the HTTP API.
    assert (settings.api_port is not None) == ("scorer" in settings.models)
    chosen = patch["MODELS"].split(",")
    assert set(chosen) <= set(MODELS)
    if overlay.name == "decoding":
        # The pool and the rest of the process have to fit the container.
        limit = gibibytes(
            container(documents(overlay / "deployment.yaml")[0])["resources"]["limits"]["memory"]
        )
        assert limit >= int(both["HOST_KV_BYTES"]) / GI + 16
        threshold = only(resources(overlay), "ScaledObject")["spec"]["triggers"][0]["metadata"]["threshold"]
        assert int(threshold) < int(both["MAX_STREAMS"])


def test_pod_has_time_to_drain() -> None:
    pod = only(resources(BASE), "Deployment")["spec"]["template"]["spec"]
    before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(environment(pod["containers"][0])["DRAIN_TIMEOUT_S"])
    assert before > DNS_SECONDS
    # The HTTP API is stopped first, then the models.
    of_api = drain + api.GRACE_SECONDS
    of_models = drain + GRACE_SECONDS + GROUP_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= before + of_api + of_models


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_a_rollout_leaves_a_pod_that_serves(overlay: Path) -> None:
    base = only(resources(BASE), "Deployment")["spec"]["strategy"]["rollingUpdate"]
    own = documents(overlay / "deployment.yaml")[0]["spec"].get("strategy", {}).get("rollingUpdate", {})
    least = only(resources(overlay), "ScaledObject")["spec"]["minReplicaCount"]
    assert least - {**base, **own}["maxUnavailable"] >= 1


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_a_lost_prometheus_removes_no_pod(overlay: Path) -> None:
    spec = only(resources(overlay), "ScaledObject")["spec"]
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert spec["fallback"]["replicas"] >= spec["minReplicaCount"]
    for trigger in spec["triggers"]:
        # KEDA falls back on errors alone, and an empty answer is none by default.
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        # The only type of metric that the fallback knows.
        assert trigger["metricType"] == "AverageValue"


def test_prometheus_picks_up_what_is_for_it() -> None:
    """kube-prometheus-stack selects monitors and rules by its release's name."""
    monitor, rule = only(resources(BASE), "PodMonitor"), only(resources(MONITORING), "PrometheusRule")
    assert monitor["metadata"]["labels"]["release"] == rule["metadata"]["labels"]["release"]


@pytest.mark.slow
def test_startup_probe_waits_longer_than_the_launcher(tmp_path: Path) -> None:
    """By one number: change READY_TIMEOUT_S alone, and the probe follows."""
    copy = shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    text = (copy / "base/deployment.yaml").read_text()
    assert text.count('value: "900"') == 1
    (copy / "base/deployment.yaml").write_text(text.replace('value: "900"', 'value: "1234"'))
    for directory, timeout in ((KUBERNETES, 900), (copy, 1234)):
        for overlay in OVERLAYS:
            one = container(only(render(directory / "overlays" / overlay.name), "Deployment"))
            assert environment(one)["READY_TIMEOUT_S"] == str(timeout)
            # The launcher starts a server that crashes a second time.
            seconds = one["startupProbe"]["periodSeconds"] * one["startupProbe"]["failureThreshold"]
            assert seconds == 2 * timeout


def test_images_are_named_by_digest() -> None:
    for overlay in (API, MODEL, *OVERLAYS):
        (image,) = documents(overlay / "kustomization.yaml")[0]["images"]
        assert "newTag" not in image
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", image["digest"])


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_components_fit_an_overlay(overlay: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(KUBERNETES, tmp_path / "kubernetes") / "overlays" / overlay.name
    with (copy / "kustomization.yaml").open("a") as file:
        file.write("components:\n" + "".join(f"  - ../../components/{path.name}\n" for path in COMPONENTS))
    found = render(copy)
    for document in found:
        check(document, VERSIONS[0])
    pod = only(found, "Deployment")["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    # GPUs that no instance takes would be paid for nothing.
    given = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert given == environment(pod["containers"][0])["TENSOR_PARALLEL"] == "2"
    # The claim is this role's own, and where the image has its kernels.
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in pod["volumes"]
        if "persistentVolumeClaim" in v
    }
    claim = only(found, "PersistentVolumeClaim")
    assert claims["kernels"] == claim["metadata"]["name"] == f"hiscore-kernels-{overlay.name}"
    assert claims["models"] == "hiscore-model"
    (mount,) = (m["mountPath"] for m in pod["containers"][0]["volumeMounts"] if m["name"] == "kernels")
    assert f"TRITON_CACHE_DIR={mount} " in (DOCKER / "Dockerfile").read_text()


def test_the_api_is_reached_where_it_is() -> None:
    (scoring,) = (overlay for overlay in OVERLAYS if overlay.name == "scoring")
    (port,) = container(documents(scoring / "deployment.yaml")[0])["ports"]
    assert port == {"name": "api", "containerPort": ServeSettings.model_fields["api_port"].default}
    (service,) = documents(scoring / "service.yaml")[0]["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (port["containerPort"], "api")
    for rule in only(resources(BASE), "NetworkPolicy")["spec"]["ingress"]:
        assert {"port": "api"} in rule["ports"]
    endpoints = only(resources(BASE), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert "api" in [endpoint["port"] for endpoint in endpoints]


def test_the_api_by_itself_finds_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resources(API)
    pod = only(found, "Deployment")["spec"]["template"]
    (one,) = pod["spec"]["containers"]
    for name, value in environment(one).items():
        monkeypatch.setenv(name, value)
    settings = ServeSettings()
    # As the scoring role is called, and by its gRPC port.
    scoring = next(overlay for overlay in OVERLAYS if overlay.name == "scoring")
    kustomization = documents(scoring / "kustomization.yaml")[0]
    name = only(resources(BASE), "Service")["metadata"]["name"] + kustomization["nameSuffix"]
    assert settings.api_backend == f"dns:///{name}.{kustomization['namespace']}.svc:{settings.grpc_port}"
    models = environment(container(documents(scoring / "deployment.yaml")[0]))["MODELS"]
    assert settings.models == models
    # It may call them, and they let it in.
    labels = kustomization["labels"][0]["pairs"] | {"app.kubernetes.io/name": "hiscore"}
    policy = only(found, "NetworkPolicy")["spec"]
    assert policy["egress"][0]["to"] == [{"podSelector": {"matchLabels": labels}}]
    (client,) = only(resources(BASE), "NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"][
        "matchExpressions"
    ]
    assert pod["metadata"]["labels"][client["key"]] in client["values"]
    # It needs no GPU, and time to drain.
    assert "nvidia.com/gpu" not in one["resources"]["limits"]
    before = one["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before > DNS_SECONDS
    stops = settings.drain_timeout_s + api.GRACE_SECONDS + GROUP_SECONDS
    assert pod["spec"]["terminationGracePeriodSeconds"] >= before + stops


def test_shared_memory_holds_the_regions() -> None:
    deployment = only(resources(BASE), "Deployment")
    (shm,) = (v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "shm")
    assert shm["emptyDir"]["medium"] == "Memory"
    mounts = {mount["name"]: mount["mountPath"] for mount in container(deployment)["volumeMounts"]}
    assert mounts["shm"] == "/dev/shm"
    # tokenizer, scorer and decode, each grown three times.
    regions = 3 * 4 * SHM_BYTES
    assert gibibytes(shm["emptyDir"]["sizeLimit"]) * GI >= regions


def test_a_job_fills_the_volume_that_pods_read_once(checkpoints: Any, tmp_path: Path) -> None:
    job = only(resources(MODEL), "Job")
    claim = only(resources(MODEL), "PersistentVolumeClaim")["metadata"]["name"]
    for volumes in (
        job["spec"]["template"]["spec"],
        only(resources(BASE), "Deployment")["spec"]["template"]["spec"],
    ):
        assert volumes["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
    shell, flags, script = container(job)["command"]
    source, volume = tmp_path / "source", tmp_path / "volume"
    shutil.copytree(checkpoints("llama")[0], source)
    volume.mkdir()
    (volume / "model.safetensors").write_bytes(b"half of it")  # as a job leaves it that was killed
    variables = os.environ | {
        "MODEL_ID": str(source), "PYTHONPATH": str(KUBERNETES.parent),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    for _ in range(2):
        subprocess.run([shell, flags, script.replace("/models", str(volume))], env=variables, check=True)
        check_digests(resolve(str(volume)))
        assert (volume / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
        (source / "config.json").unlink(missing_ok=True)  # the second time nothing is fetched
    (volume / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not loaded"):
        check_digests(volume)


@pytest.mark.parametrize("directory", [BASE, API, MODEL], ids=lambda path: path.name)
def test_pod_is_restricted(directory: Path) -> None:
    """The rules of the Pod Security Standard "restricted", and a root file system that nobody writes to."""
    pod = only(resources(directory), "Job" if directory is MODEL else "Deployment")["spec"]["template"][
        "spec"
    ]
    own = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert {"hostNetwork", "hostPID", "hostIPC"} & pod.keys() == set()
    # Every directory that the image writes to is a volume.
    written = set(
        re.findall(r"=(/var/cache/hiscore)\b|^WORKDIR (/tmp)$", (DOCKER / "Dockerfile").read_text(), re.M)
    )
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {one or other for one, other in written} <= mounts


def test_probes_ask_what_the_launcher_answers() -> None:
    one = container(only(resources(BASE), "Deployment"))
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    health = re.search(r"HEALTH_PORT=(\d+)", (DOCKER / "Dockerfile").read_text())
    assert health
    assert ports == {
        name: ServeSettings.model_fields[f"{name}_port"].default for name in ("http", "grpc", "metrics")
    } | {"health": int(health[1])}
    healthy = SimpleNamespace(alive=True, unready="", restarts=0)
    ill = SimpleNamespace(alive=False, unready="no answer from scorer", restarts=0)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert one[probe]["httpGet"]["port"] == "health"
        path = one[probe]["httpGet"]["path"]
        assert (answer(path, healthy)[0], answer(path, ill)[0]) == (200, 503)  # type: ignore[arg-type]
    # A launcher that is busy with a restart is alive.
    busy = SimpleNamespace(alive=True, unready="the server is being restarted", restarts=1)
    assert answer(one["livenessProbe"]["httpGet"]["path"], busy)[0] == 200  # type: ignore[arg-type]
    service = only(resources(BASE), "Service")["spec"]
    assert service["clusterIP"] == "None"
    assert {port["targetPort"] for port in service["ports"]} <= ports.keys()
    endpoints = only(resources(BASE), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert {endpoint["port"] for endpoint in endpoints} <= ports.keys() | {"api"}
