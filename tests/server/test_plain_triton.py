"""A plain tritonserver loads the repository as it stands: settings, checkpoints, models that come and go."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hiscore.launcher.repository import CONFIG, SHIPPED
from tests.server import generation
from tests.server.plain import PlainTriton, plain_triton
from tests.server.test_score_parity import CASES, LABELS, truth
from tests.server.wire import WAYS, Refused, score_texts
from tests.support import tiny_models, tiny_tokenizers
from tests.support.comparison import check
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = pytest.mark.server

OURS = ("score", "classify", "tokenizer", "scorer", "decode")
OF_OTHER = ("score", "tokenizer", "scorer")
PROMPT = {"input_ids": [5, 6, 7]}
EXAMPLES = Path(__file__).resolve().parents[2] / "client/examples/tritonclients"


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
    for name in OF_OTHER:
        copy = directory / f"{name}_de"
        shutil.copytree(SHIPPED / name, copy, ignore=shutil.ignore_patterns("__pycache__"))
        config = re.sub('ame: "(score|tokenizer|scorer)"', r'ame: "\1_de"', (copy / CONFIG).read_text())
        if name != "score":
            config += f'parameters {{ key: "MODEL" value: {{ string_value: "{other_lm}" }} }}\n'
        (copy / CONFIG).write_text(config)
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
    assert set(scorer["input_map"]) == {"input_ids", "delimiter_indices", "label_token_ids"}
    assert set(scorer["input_map"].values()) == set(tokenizer["output_map"].values())


def test_triton_places_one_instance_by_itself(plain: PlainTriton) -> None:
    for model in ("scorer", "decode"):
        (group,) = plain.config_of(model)["instance_group"]
        assert (group["kind"], group["count"]) == ("KIND_CPU", 1)


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
        ({"MAX_ITMES": "3"}, "parameter 'MAX_ITMES' of config.pbtxt is none of LOG_FORMAT, MAX_CALL_TOKENS"),
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
    plain.control("tokenizer_de", "load", {"MAX_ITEMS": "2", "MODEL": str(other_lm)})
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
