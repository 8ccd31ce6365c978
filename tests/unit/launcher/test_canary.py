"""When a model gets a canary, which answers are good, and when it counts as silent."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from hiscore.launcher.canary import Canaries, Canary, HttpTransport, Probe, probes
from hiscore.settings import CANARY_ID
from tests.support.http_server import Asked, answering
from tests.support.timeouts import TIMEOUT_S

FOREVER = 1e6
PROBE = Probe("scorer", "infer", {"a": 1}, '"scores"', ("work_total", "more_total"))
GOOD = (200, '{"outputs": [{"name": "scores"}]}')


class FakeModel:
    """A transport to a model that answers at will; like a real one, it counts canaries among its work."""

    def __init__(self, answer: tuple[int, str] = GOOD, counts_canaries: bool = True) -> None:
        self.answer = answer
        self.counts_canaries = counts_canaries
        self.work = 7
        self.asked = 0
        self.metrics_fail = False
        self.sent: list[tuple[str, str]] = []
        self.on_call: Callable[[], object] = lambda: None

    def call(self, path: str, body: str) -> tuple[int, str]:
        self.asked += 1
        self.sent.append((path, body))
        self.on_call()
        if self.answer == GOOD and self.counts_canaries:
            self.work += 1
        return self.answer

    def metrics(self) -> str | None:
        return None if self.metrics_fail else f'work_total{{model="scorer",version="1"}} {self.work}\n'


def test_a_canary_is_what_the_probe_says() -> None:
    model = FakeModel()
    assert Canary(PROBE, model).check() == ""
    assert model.sent == [("/v2/models/scorer/infer", '{"a": 1}')]


@pytest.mark.parametrize("counts_canaries", [True, False])
def test_an_idle_model_is_asked_at_every_check(counts_canaries: bool) -> None:
    """Also where the canary raises the model's counters: its own probe does not count as work."""
    model = FakeModel(counts_canaries=counts_canaries)
    canary = Canary(PROBE, model)
    for checks in range(1, 6):
        canary.check()
        assert model.asked == checks
    assert canary.misses == 0


def test_a_model_that_works_is_not_asked() -> None:
    model = FakeModel(answer=(0, "TimeoutError()"))  # it would not answer in time
    canary = Canary(PROBE, model)
    canary.check()
    assert (model.asked, canary.misses) == (1, 1)
    for _ in range(5):
        model.work += 1
        assert canary.check() == ""
    assert (model.asked, canary.misses) == (1, 0)
    # As soon as it is idle it gets a canary again.
    canary.check()
    assert (model.asked, canary.misses) == (2, 1)


def test_a_forward_that_outlasts_every_canary_is_work() -> None:
    """Minutes without a metric and without an answer, but layer after layer is computed."""
    model, layers = FakeModel(answer=(0, "TimeoutError()")), iter(range(10**6))
    canary = Canary(PROBE, model, progress=lambda: next(layers))
    for _ in range(10):
        canary.check()
        assert canary.misses <= 1
    assert (model.asked, canary.misses) == (1, 0)


def test_what_computes_canaries_but_does_not_answer_is_silent() -> None:
    """The control: a forward for the canary itself is progress, and none when the next one is due."""
    model, layers = FakeModel(answer=(0, "TimeoutError()")), [0]

    def compute() -> None:
        layers[0] += 30

    model.on_call = compute
    canary = Canary(PROBE, model, progress=lambda: layers[0])
    for misses in range(1, 4):
        canary.check()
        assert canary.misses == misses


def test_a_counter_that_restarts_is_work() -> None:
    model = FakeModel()
    canary = Canary(PROBE, model)
    canary.check()
    model.work = 0
    canary.check()
    assert model.asked == 1


def test_a_model_whose_counters_cannot_be_read_is_asked() -> None:
    model = FakeModel()
    canary = Canary(PROBE, model)
    canary.check()
    model.metrics_fail = True
    canary.check()
    assert model.asked == 2
    # What is read for the first time since does not count as work either.
    model.metrics_fail = False
    model.work += 100
    canary.check()
    assert model.asked == 3


@pytest.mark.parametrize(
    "bad",
    [
        (0, "ConnectionRefusedError()"),
        (500, GOOD[1]),
        (404, "not found"),
        (200, "{}"),
        (200, 'data: {"error": "the engine is dead"}\n\ndata: {"scores": []}'),
        (200, '{"scores": [], "error": "internal error"}'),
    ],
)
def test_a_bad_answer_is_a_miss(bad: tuple[int, str]) -> None:
    model = FakeModel(bad)
    canary = Canary(PROBE, model)
    complaint = canary.check()
    assert str(bad[0]) in complaint
    assert bad[1] in complaint
    assert canary.misses == 1
    model.answer = GOOD
    assert canary.check() == ""
    assert canary.misses == 0


@pytest.mark.parametrize(
    ("answer", "silent"),
    [
        ((500, """{"error":"Stub process 'scorer_0' is not healthy."}"""), ["scorer"]),
        ((500, """{"error":"Stub process is not healthy."}"""), ["scorer"]),
        ((500, """{"error":"internal error"}"""), []),
        ((0, "TimeoutError()"), []),
    ],
)
def test_a_process_that_triton_has_given_up_is_not_waited_for(
    answer: tuple[int, str], silent: list[str]
) -> None:
    canary = Canary(PROBE, FakeModel(answer))
    canaries = Canaries([canary], FOREVER, max_misses=3)
    try:
        canary.check()
        assert canaries.silent == silent
    finally:
        canaries.close()


def test_work_is_the_sum_of_the_models_own_counters() -> None:
    page = (
        "# HELP work_total Work\n"
        'work_total{model="scorer",device="cuda:0"} 3\n'
        'work_total{device="cuda:1",model="scorer"} 4.5\n'
        'more_total{model="scorer"} 1e2\n'
        'work_total{model="decode"} 1000\n'
        'work_total{model="scorer2"} 1000\n'
        'work_total{supermodel="scorer"} 1000\n'
        'other_work_total{model="scorer"} 1000\n'
        'work_total_more{model="scorer"} 1000\n'
    )
    assert PROBE.work(page) == 107.5
    assert PROBE.work("") == 0


def canaries_of(**models: FakeModel) -> list[Canary]:
    return [
        Canary(Probe(name, "infer", {}, '"scores"', ("work_total",)), model) for name, model in models.items()
    ]


@pytest.fixture
def three() -> Iterator[tuple[list[Canary], list[FakeModel], Canaries]]:
    """Canaries of three models that nobody but the test asks to check."""
    models = [FakeModel((0, "timeout")) for _ in range(3)]
    each = canaries_of(tokenizer=models[0], scorer=models[1], decode=models[2])
    canaries = Canaries(each, interval_s=FOREVER, max_misses=3)
    yield each, models, canaries
    canaries.close()


def test_a_model_is_doubtful_from_one_miss_on_and_silent_from_as_many_as_set(
    three: tuple[list[Canary], list[FakeModel], Canaries],
) -> None:
    (_, scorer, _), (_, model, _), canaries = three
    seen = []
    for _ in range(4):
        seen.append((canaries.doubtful, canaries.silent))
        scorer.check()
    assert seen == [([], []), (["scorer"], []), (["scorer"], []), (["scorer"], ["scorer"])]
    model.answer = GOOD
    scorer.check()
    assert (canaries.doubtful, canaries.silent) == ([], [])


def test_every_model_has_a_thread_that_checks_again_and_again_until_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checks: Queue[str] = Queue()
    hanging, silent = FakeModel((0, "timeout")), FakeModel((0, "timeout"))
    hang = threading.Event()
    hanging.on_call = hang.wait  # one that hangs does not keep the others from being checked
    silent.on_call = lambda: checks.put("scorer")
    canaries = Canaries(canaries_of(decode=hanging, scorer=silent), interval_s=0, max_misses=2)
    try:
        for _ in range(3):
            assert checks.get(timeout=TIMEOUT_S) == "scorer"
        assert canaries.silent == ["scorer"]
    finally:
        canaries.close()
        hang.set()
    for thread in threading.enumerate():
        if thread.name.startswith("hiscore-canary-"):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
    assert "model scorer has missed a canary: 0 timeout" in caplog.text
    # A failure while the server is being stopped is not worth a log line.
    assert "model decode" not in caplog.text


def test_over_http() -> None:
    got: list[tuple[str, str, bytes]] = []
    answers = {"/call": (200, "fine"), "/bad": (400, "bad"), "/metrics": (200, "a 1")}

    def answer(asked: Asked) -> tuple[int, str]:
        got.append((asked.method, asked.path, asked.body))
        return answers[asked.path]

    with answering(answer) as address:
        transport = HttpTransport(address, address, timeout_s=TIMEOUT_S)
        assert transport.call("/call", '{"a": 1}') == (200, "fine")
        assert got == [("POST", "/call", b'{"a": 1}')]
        assert transport.call("/bad", "") == (400, "bad")
        assert transport.metrics() == "a 1"
        answers["/metrics"] = (500, "a 1")
        assert transport.metrics() is None


def test_nobody_there() -> None:
    with socket.socket() as holder:  # bound, so that nobody else listens there
        holder.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        transport = HttpTransport(address, address, timeout_s=TIMEOUT_S)
        assert transport.call("/", "")[0] == 0
        assert "ConnectionRefused" in transport.call("/", "")[1]
        assert transport.metrics() is None


@pytest.mark.parametrize(
    ("architecture", "labels"), [("ForCausalLM", [0]), ("ForSequenceClassification", [])]
)
def test_probes_are_calls_that_the_checkpoint_answers(
    architecture: str, labels: list[int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [f"Llama{architecture}"]}))
    tokenizer, scorer, decode = probes(["score", "tokenizer", "scorer", "decode"], tmp_path)
    assert [probe.model for probe in (tokenizer, scorer, decode)] == ["tokenizer", "scorer", "decode"]
    assert (tokenizer.path, scorer.path) == ("/v2/models/tokenizer/infer", "/v2/models/scorer/infer")
    assert probes(["scorer"], tmp_path) == [scorer]
    assert tokenizer.body["id"] == scorer.body["id"] == CANARY_ID
    inputs = {each["name"]: each for each in scorer.body["inputs"]}
    assert inputs["label_token_ids"]["data"] == labels
    assert inputs["label_token_ids"]["shape"] == [1, len(labels)]
    assert inputs["input_ids"]["data"][1:-1] == [0]
    assert inputs["delimiter_indices"]["data"] == [0, 2]
    texts = {each["name"]: each for each in tokenizer.body["inputs"]}
    assert ("label_token_ids" in texts) == bool(labels)
    assert texts["query"]["datatype"] == texts["items"]["datatype"] == "BYTES"
    assert inputs["input_ids"]["datatype"] == "INT32"
    assert decode.body == {"input_ids": [0], "max_tokens": 1}
