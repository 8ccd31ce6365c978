"""A plain tritonserver loads the repository as it stands: settings, checkpoints, models that come and go."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http

from hiscore.launcher.repository import CONFIG, SHIPPED
from tests.server import generation
from tests.server.footprint import footprint, grown
from tests.server.plain import PlainTriton, plain_triton
from tests.server.test_score_parity import CASES, LABELS, truth
from tests.server.wire import WAYS, Refused, over_grpc, score_texts
from tests.support import tiny_models, tiny_tokenizers
from tests.support.comparison import check
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = pytest.mark.server

OURS = ("score", "classify", "tokenizer", "scorer", "decode")
PROMPT = {"input_ids": [5, 6, 7]}
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "client/examples/tritonclients"
PAGE = (ROOT / "docs/triton.md").read_text()


def example(heading: str, language: str) -> str:
    """The code of a section of docs/triton.md."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture(scope="module")
def other_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkpoint than the small LM, with the same tokenizer."""
    directory = tiny_models.make("qwen3", tmp_path_factory.mktemp("other-lm"))
    tokenizer = tiny_tokenizers.train(tiny_tokenizers.smollm2(), tiny_models.VOCABULARY)
    return tiny_tokenizers.save(tokenizer, directory)


@pytest.fixture(scope="module")
def repository(other_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped models, and copies for another checkpoint as docs/triton.md tells users to make them."""
    directory = tmp_path_factory.mktemp("repository")
    for name in OURS:
        (directory / name).symlink_to(SHIPPED / name)
    script = example("Several checkpoints in one server", "sh")
    for written, here in {
        "/models/german": other_lm,
        " model_repository/": f" {SHIPPED}/",
        " repository/": f" {directory}/",
    }.items():
        assert written in script
        script = script.replace(written, str(here))
    subprocess.run(["bash", "-euc", script], check=True)
    caller = directory / "caller"
    (caller / "1").mkdir(parents=True)
    (caller / CONFIG).write_text(example("From another Python model", "pbtxt"))
    (caller / "1/model.py").write_text(example("From another Python model", "python"))
    return directory


@pytest.fixture(scope="module")
def plain(repository: Path, smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainTriton]:
    """Without MODEL, so that the default model is served."""
    directory = tmp_path_factory.mktemp("plain")
    settings = {"MAX_CONTEXT": "512", "HOST_KV_BYTES": str(2**27), "QUERY_CACHE_BYTES": str(2**24)}
    # A test kills a model, for whose last request Triton would wait at its end.
    flags = ["--disable-auto-complete-config", "--exit-timeout-secs=2"]
    flags += ["--model-control-mode=explicit", "--load-model=*"]
    with plain_triton(repository, directory, *flags, **settings) as server:
        yield server


@pytest.mark.parametrize("way", WAYS)
def test_two_checkpoints_score_beside_each_other(
    way: str, plain: PlainTriton, smollm: Path, other_lm: Path
) -> None:
    query, items, item_first = CASES["merges-over-the-boundary"]
    for model, checkpoint in {"score": smollm, "score_de": other_lm}.items():
        answer = score_texts(plain, query, items, LABELS, way, model=model)
        check(answer.scores, truth(checkpoint, query, items, LABELS, item_first), over_vocabulary=True)
    # The control: each would fail the other's check.
    with pytest.raises(AssertionError):
        check(answer.scores, truth(smollm, query, items, LABELS, item_first), over_vocabulary=True)


def test_the_ensemble_hands_ids_and_delimiters_from_step_to_step(plain: PlainTriton) -> None:
    tokenizer, scorer = plain.config_of("score")["ensemble_scheduling"]["step"]
    assert (tokenizer["model_name"], scorer["model_name"]) == ("tokenizer", "scorer")
    handed = {"input_ids", "delimiter_indices", "label_token_ids"}
    assert set(scorer["input_map"]) == handed
    assert set(scorer["input_map"].values()) == set(tokenizer["output_map"].values())


def test_triton_places_one_instance_by_itself(plain: PlainTriton) -> None:
    for model in ("scorer", "decode"):
        (group,) = plain.config_of(model)["instance_group"]
        assert (group["kind"], group["count"]) == ("KIND_CPU", 1)


def test_another_python_model_calls_score(plain: PlainTriton) -> None:
    """By the code of docs/triton.md; an error of `score` reaches the caller without a traceback."""
    query, items = "Is this a fruit? It is", [" a hammer", " an apple", " a pear", " a stone"]

    def order(items: list[str]) -> list[int]:
        sent = {"query": np.array([query], np.object_), "items": np.array(items, np.object_)}
        return [int(each) for each in over_grpc(plain, "caller", sent, {})["order"]]

    scores = score_texts(plain, query, items, [" Yes", " No"], apply_softmax=True).scores[:, 0]
    assert order(items) == np.argsort(-scores).tolist()
    assert order(items[::-1]) == np.argsort(-scores[::-1]).tolist() != order(items)
    with pytest.raises(Refused, match=r"^\w+: in ensemble 'score', [^/]*$"):
        order([" word" * 600])


@pytest.mark.parametrize("module", [tritonclient.grpc, tritonclient.http], ids=["grpc", "http"])
def test_classify_names_the_likeliest_labels(module: ModuleType, plain: PlainTriton) -> None:
    """A language model's labels are those of the call; names in labels.txt are tested with a classifier."""
    sent = {
        "text": np.array([["It is an apple"]], np.object_),
        "label_token_ids": np.array([[5, 9, 7]], np.int32),
    }
    inputs = []
    for name, values in sent.items():
        kind = "INT32" if values.dtype == np.int32 else "BYTES"
        inputs.append(module.InferInput(name, list(values.shape), kind))
        inputs[-1].set_data_from_numpy(values)
    url = plain.grpc_url if module is tritonclient.grpc else plain.http_address
    with module.InferenceServerClient(url) as client:
        (all_of,) = client.infer("classify", inputs).as_numpy("probabilities")
        asked = [module.InferRequestedOutput("probabilities", class_count=2)]
        (named,) = client.infer("classify", inputs, outputs=asked).as_numpy("probabilities")
    assert [int(each.split(b":")[1]) for each in named] == np.argsort(-all_of)[:2].tolist()


def test_decode_streams(plain: PlainTriton) -> None:
    one, again = (generation.over_grpc(plain, PROMPT, max_tokens=5, ignore_eos=True) for _ in range(2))
    assert one.reason == "length"
    assert len(one.ids) == 5
    assert one.ids == again.ids


def test_models_with_the_same_weights_share_them(plain: PlainTriton) -> None:
    claims = [
        (owner, name)
        for owners in plain.claims().values()
        for owner, lines in owners.items()
        for name, _ in lines
        if name
    ]
    of = dict(claims)
    assert of["scorer on cpu"] == of["decode on cpu"] != of["scorer_de on cpu"]
    assert set(of) == {"scorer on cpu", "decode on cpu", "scorer_de on cpu"}


def test_a_model_comes_and_goes_and_frees_its_memory(plain: PlainTriton) -> None:
    """Its own parameters go before the environment; what is loaded again has the others."""
    (process,) = plain.stubs("scorer_de")
    plain.control("score_de", "unload")
    plain.control("scorer_de", "unload")
    wait_until(lambda: not process.is_running(), lambda: plain.states())
    assert str(process.pid) not in plain.claims()
    with pytest.raises(Refused, match="scorer_de"):
        score_texts(plain, "a", ["b"], LABELS, model="scorer_de")
    (given,) = plain.states().keys() & {"scorer_de"}
    assert given not in {name for name, state in plain.states().items() if state == "READY"}


def test_an_owner_of_shared_weights_stays_until_the_last_user_is_unloaded(plain: PlainTriton) -> None:
    processes = {name: plain.stubs(name)[0] for name in ("scorer", "decode")}
    plain.control("score", "unload")
    for name in processes:
        plain.control(name, "unload")
    wait_until(lambda: not any(each.is_running() for each in processes.values()), lambda: plain.states())
    assert not plain.claims().keys() & {str(each.pid) for each in processes.values()}
    for name in ("scorer", "decode", "score"):
        plain.control(name, "load")
    assert generation.over_grpc(plain, PROMPT, max_tokens=3, ignore_eos=True).reason == "length"


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (
            {"MAX_ITMES": "3"},
            "parameter 'MAX_ITMES' of config.pbtxt is none of ADAPTERS, LOG_FORMAT, MAX_CALL_TOKENS",
        ),
        ({"MAX_ITEMS": "none"}, "MAX_ITEMS: Input should be a valid integer"),
        ({"MODEL": "/no/such/directory"}, "no model '/no/such/directory'"),
    ],
)
def test_a_wrong_parameter_is_named_and_leaves_the_others_alone(
    parameters: dict[str, str], says: str, plain: PlainTriton
) -> None:
    before = plain.get("/v2/models/tokenizer/ready")
    with pytest.raises(Refused, match=says):
        plain.control("tokenizer_de", "load", parameters)
    assert plain.get("/v2/models/tokenizer/ready") == before
    score_texts(plain, "a", ["b"], LABELS, model="score")


def test_parameters_of_a_load_are_in_force(plain: PlainTriton, other_lm: Path) -> None:
    """They are shown to whoever asks for the config; with those of the environment they are in the log."""
    given = {"MAX_ITEMS": "2", "MODEL": str(other_lm)}
    plain.control("tokenizer_de", "load", given)
    shown = plain.config_of("tokenizer_de")["parameters"]
    assert {name: each["string_value"] for name, each in shown.items()} == given
    log = plain.log.read_text()
    assert f"settings of tokenizer_de: MODEL={other_lm} MAX_CONTEXT=512 MAX_ITEMS=2" in log
    assert re.search(r"settings of scorer: .*MAX_CONTEXT=512", log)
    with pytest.raises(Refused, match="at most 2"):
        score_texts(plain, "a", ["b"] * 3, LABELS, model="tokenizer_de")


@pytest.mark.parametrize(
    ("example", "port", "says"),
    [
        ("score_http", 0, r"0\.\d{3} an apple"),
        ("score_http_aio", 0, r"tool: apple 0\.\d{3}, hammer 0\.\d{3}"),
        ("tokens_grpc", 1, r"0\.\d{3} a pear"),
        ("score_grpc_aio", 1, r"planet: apple 0\.\d{3}, hammer 0\.\d{3}"),
        ("stream_grpc", 1, "Paris"),
        ("shared_memory_grpc", 1, r"0\.\d{3} a pear"),
    ],
)
def test_an_example_of_tritonclient_runs(example: str, port: int, says: str, plain: PlainTriton) -> None:
    command = [sys.executable, str(EXAMPLES / f"{example}.py"), f"127.0.0.1:{plain.ports[port]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert re.search(says, done.stdout), done.stdout + done.stderr


def test_a_model_that_dies_stays_dead_and_the_others_go_on(plain: PlainTriton) -> None:
    """Nobody restarts it: docs/triton.md says so, and what the launcher does about it."""
    (process,) = plain.stubs("decode")
    process.kill()
    with pytest.raises(Refused):
        generation.over_grpc(plain, PROMPT, max_tokens=3)
    score_texts(plain, "a", ["b"], LABELS, model="score")


@pytest.mark.exhaustive
def test_models_that_come_and_go_leave_nothing(repository: Path, tiny_lm: Path, tmp_path: Path) -> None:
    rounds, flags = 6, ["--model-control-mode=explicit"]
    models = [*OURS[2:], *(f"{each}_de" for each in OURS[2:4])]
    settings = {"MODEL": str(tiny_lm), "MAX_CONTEXT": "512", "HOST_KV_BYTES": str(2**24)}
    samples, files = [], []
    with plain_triton(repository, tmp_path, *flags, ready="/v2/health/live", **settings) as server:
        tritonserver = psutil.Process(server.process.pid)
        for _ in range(rounds):
            for action in ("load", "unload"):
                with ThreadPoolExecutor(len(models)) as pool:
                    list(pool.map(partial(server.control, action=action), models))
                if action == "load":
                    assert generation.over_grpc(server, PROMPT, max_tokens=3, ignore_eos=True).ids
            wait_until(lambda: not tritonserver.children(), server.states)
            samples.append(footprint(tritonserver.pid, server.name))
            files.append(sorted(re.sub(r"\d+", "N", each.name) for each in server.run_directory().iterdir()))
    print(*samples, files[-1], sep="\n")
    assert grown(samples) == []
    # One that each load left would be many here.
    assert max(each.files for each in samples[3:]) - samples[3].files < rounds - 4
    assert files[3] == files[-1]


def test_a_classifier_is_scored_while_decode_says_why_it_cannot(tmp_path: Path) -> None:
    checkpoint = tiny_models.make("llama", tmp_path / "classifier", labels=2)
    flags = ["--exit-on-error=false", "--strict-readiness=false"]
    with plain_triton(
        SHIPPED, tmp_path, *flags, ready="/v2/models/scorer/ready", MODEL=str(checkpoint)
    ) as server:
        states = server.states()
        log = server.log.read_text()
        process = server.process
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert states["scorer"] == "READY"
    assert states["decode"] == states["tokenizer"] == "UNAVAILABLE"
    assert states["score"] != "READY"
    assert "cannot be served by this model: architecture 'LlamaForSequenceClassification' has no head" in log
    assert "cannot be served by this model: the checkpoint has no tokenizer.json" in log
