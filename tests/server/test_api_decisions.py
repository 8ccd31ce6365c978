"""`/v1/decisions` and `/v1/systemone`: every answer is transformers' own, and bad requests are told so."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import pytest

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from tests.server.api import Reply, api_of, call
from tests.server.raw_http import leak
from tests.support.decision_truth import ENDINGS, answer_of, prompt_of, tokenizer_of

pytestmark = pytest.mark.server

STATE = "Dear all, I was charged twice for my order of 12 nails. Please send my money back! 苹果 <|im_end|>"
CLEAN = STATE.replace("<|im_end|>", "")
# What the issue allows in float32.
EXACT = 1e-4
OPTIONS = [("refund", "the customer wants money"), ("praise", None), ("hammer", "about\ntools")]
LEVELS = [("calm", None), ("annoyed", "a little"), ("angry", None)]
MAX_BODY = 200_000
CALL_TOKENS = 200_000
TEMPERATURES = {"choice": 2.0, "predicate": 0.5}


@pytest.fixture(scope="module")
def api(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("api")
    (directory / "calibration.json").write_text(json.dumps({"temperatures": TEMPERATURES, "note": 1}))
    with api_of(
        server,
        directory / "api.log",
        max_body=MAX_BODY,
        calibration=directory / "calibration.json",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def plain(lm: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with api_of(lm, tmp_path_factory.mktemp("api") / "api.log") as running:
        yield running


def choice(options: Sequence[tuple[Any, str | None]] = OPTIONS, **more: Any) -> dict[str, Any]:
    """A question; `more` replaces or adds fields."""
    choices = [{"value": value, **({"description": text} if text else {})} for value, text in options]
    return {"type": "choice", "instructions": "What does it ask for?", "choices": choices, **more}


QUESTIONS = [
    {"type": "predicate", "instructions": "The customer wants money back.", "name": "money"},
    choice(name="kind"),
    {
        "type": "score",
        "instructions": "How angry is it?",
        "levels": [{"label": label, **({"description": text} if text else {})} for label, text in LEVELS],
    },
]


def listed(labels: Sequence[str], options: Sequence[tuple[str, str | None]]) -> str:
    lines = [
        f"{label}: {value}{f' - {text}' if text else ''}"
        for label, (value, text) in zip(labels, options, strict=True)
    ]
    return "\n".join(lines)


def asked(kind: str, options: Sequence[tuple[str, str | None]] = OPTIONS, labels: str = "ABCDEFG") -> str:
    """A question as its prompt has it."""
    if kind == "predicate":
        return f"The customer wants money back.\n{ENDINGS[kind]}"
    if kind == "score":
        return f"How angry is it?\n{listed('012', LEVELS)}\n{ENDINGS[kind]}"
    return f"What does it ask for?\n{listed(labels[: len(options)], options)}\n{ENDINGS[kind]}"


def decide(api: Api, state: Any, questions: Sequence[Any], **more: Any) -> Any:
    reply = call(api, "/v1/decisions", {"model": "m", "input": state, "questions": questions, **more})
    assert reply.status == 200, reply.body
    return reply.json


def probabilities(answer: dict[str, Any]) -> list[float]:
    if answer["type"] == "predicate":
        return [answer["probability"], 1 - answer["probability"]]
    return [each["probability"] for each in answer["probabilities"]]


LABELS = {"predicate": ["Yes", "No"], "choice": ["A", "B", "C"], "score": ["0", "1", "2"]}


def test_each_answer_is_transformers_own(api: Api, smollm: Path) -> None:
    # Without the attack: transformers would read it as a token.
    answer = decide(api, CLEAN, QUESTIONS, calibrated=False)
    assert answer["model"] == "m"
    for question, found in zip(QUESTIONS, answer["answers"], strict=True):
        kind = question["type"]
        prompt = prompt_of(smollm, [{"role": "user", "content": CLEAN}], asked(kind))
        expected, mass = answer_of(smollm, prompt, LABELS[kind])
        assert found["type"] == kind
        assert found["name"] == question.get("name")
        assert probabilities(found) == pytest.approx(expected, abs=EXACT)
        assert found["label_mass"] == pytest.approx(mass, abs=EXACT)
        # The control: the same question about another state has another answer.
        other = prompt_of(smollm, [{"role": "user", "content": "All is well."}], asked(kind))
        assert np.abs(answer_of(smollm, other, LABELS[kind])[0] - expected).max() > 10 * EXACT
    _, chosen, scored = answer["answers"]
    assert [each["value"] for each in chosen["probabilities"]] == ["refund", "praise", "hammer"]
    best = int(np.argmax(probabilities(chosen)))
    assert chosen["choice"] == OPTIONS[best][0]
    assert chosen["confidence"] == pytest.approx((max(probabilities(chosen)) - 1 / 3) * 1.5)
    assert [each["value"] for each in scored["probabilities"]] == [0, 1, 2]
    assert [each["label"] for each in scored["probabilities"]] == ["calm", "annoyed", "angry"]
    assert scored["score"] == pytest.approx(np.dot(probabilities(scored), range(3)))
    usage = answer["usage"]
    assert usage["input_tokens"] == usage["total_tokens"] > 0 == usage["output_tokens"]
    assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert decide(api, CLEAN, QUESTIONS)["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_options_own_texts_are_answers_of_several_tokens(api: Api, smollm: Path) -> None:
    asked = {"answer_by": "texts", "calibrated": False}
    options = [("a refund", "the customer wants money"), ("praise for the shop", None), ("a hammer", None)]
    texts, lines = [text for text, _ in options], ["a refund: the customer wants money", *dict(options[1:])]
    (found, yes) = decide(api, CLEAN, [choice(options), QUESTIONS[0]], **asked)["answers"]
    question = "\n".join(["What does it ask for?", *lines, "Answer only with the text of the best option."])
    prompt = prompt_of(smollm, [{"role": "user", "content": CLEAN}], question)
    expected, mass = answer_of(smollm, prompt, texts)
    assert probabilities(found) == pytest.approx(expected, abs=EXACT)
    assert found["label_mass"] == pytest.approx(mass, rel=1e-3)
    # The control: each text's first token alone.
    firsts, _ = answer_of(smollm, prompt, ["a ref", "praise", "a ham"])
    assert np.abs(firsts - expected).max() > 10 * EXACT
    (label,) = decide(api, CLEAN, [QUESTIONS[0]], calibrated=False)["answers"]
    assert yes["probability"] == pytest.approx(label["probability"], abs=EXACT)
    (same,) = decide(api, CLEAN, [choice(options)], normalize="bytes", **asked)["answers"]
    roots = (expected * mass) ** (1 / np.array([*map(len, texts)]))
    assert probabilities(same) == pytest.approx(roots / roots.sum(), abs=EXACT)
    named = {"type": "choice", "instructions": "What does it ask for?", "criteria": dict(options)}
    found = call(api, "/v1/systemone", {"state": CLEAN, "questions": {"x": named}, **asked}).json
    assert list(found["answers"]["x"]["probabilities"].values()) == pytest.approx(expected, abs=EXACT)


def test_systemone_answers_the_same(api: Api, plain: Api) -> None:
    questions = {
        "kind": {
            "type": "choice", "instructions": "What does it ask for?", "criteria": dict(OPTIONS),
        },
        "anger": {"type": "score", "instructions": "How angry is it?", "criteria": ["calm", "angry"]},
        "money": {"type": "noul", "instructions": "The customer wants money back."},
    }  # fmt: skip
    found = call(api, "/v1/systemone", {"state": STATE, "questions": questions}).json
    levels = [{"label": "calm"}, {"label": "angry"}]
    same = decide(api, STATE, [QUESTIONS[1], {**QUESTIONS[2], "levels": levels}, QUESTIONS[0]])["answers"]
    assert list(found["answers"]) == ["kind", "anger", "money"]
    kind, anger, money = found["answers"].values()
    assert kind["choice"] == same[0]["choice"]
    assert kind["probabilities"] == pytest.approx(
        {each["value"]: each["probability"] for each in same[0]["probabilities"]}, abs=EXACT
    )
    assert anger["legend"] == {"0": "calm", "1": "angry"}
    assert list(anger["probabilities"].values()) == pytest.approx(probabilities(same[1]), abs=EXACT)
    assert anger["score"] == pytest.approx(same[1]["score"], abs=EXACT)
    assert money["noul"] == pytest.approx(same[2]["probability"], abs=EXACT)
    assert found["usage"]["input_tokens"] > 0 == found["usage"]["output_tokens"]


def test_criteria_and_json_are_in_the_prompt(plain: Api, tiny_lm: Path) -> None:
    state = {"subject": "Häuser", "lines": [1, True, None]}
    question = {"type": "noul", "criteria": {"true": {"a": 1}, "false": "not so"}}
    found = call(
        plain, "/v1/systemone", {"state": state, "questions": {"x": question}, "calibrated": False}
    ).json
    text = f'Is it so?\nYes: {{"a":1}}\nNo: not so\n{ENDINGS["predicate"]}'
    content = '{"subject":"Häuser","lines":[1,true,null]}'
    prompt = prompt_of(tiny_lm, [{"role": "user", "content": content}], text)
    # Behind the assistant's newline, these begin without a space.
    expected, _ = answer_of(tiny_lm, prompt, ["Yes", "No"])
    assert found["answers"]["x"]["noul"] == pytest.approx(expected[0], abs=EXACT)
    assert abs(answer_of(tiny_lm, prompt, [" Yes", " No"])[0][0] - expected[0]) > 10 * EXACT


def test_messages_and_tools_are_the_conversation(api: Api, smollm: Path) -> None:
    state = [
        {"role": "developer", "content": "Be strict."},
        {"role": "user", "content": [
            {"type": "input_text", "text": "Hi."}, {"type": "input_json", "data": {"a": 1}},
        ]},
        {"type": "function_call", "call_id": "1", "name": "find", "arguments": '{"q": 2}'},
        {"type": "function_call_output", "call_id": "1", "output": "nails"},
        {"role": "user", "content": "So?", "type": "message"},
    ]  # fmt: skip
    messages = [
        {"role": "system", "content": "Be strict."},
        {"role": "user", "content": 'Hi.\n\n{"a":1}'},
        {"role": "assistant", "content": 'Call of the tool find: {"q": 2}'},
        {"role": "user", "content": "Output of the tool find: nails\n\nSo?"},
    ]
    (found,) = decide(api, state, [QUESTIONS[1]], calibrated=False)["answers"]
    expected, _ = answer_of(smollm, prompt_of(smollm, messages, asked("choice")), ["A", "B", "C"])
    assert probabilities(found) == pytest.approx(expected, abs=EXACT)


def test_rotations_are_averaged(plain: Api, tiny_lm: Path) -> None:
    (found,) = decide(plain, CLEAN, [QUESTIONS[1]], debias="rotations", calibrated=False)["answers"]
    total = np.zeros(3)
    rows = []
    for shift in range(3):
        order = [*OPTIONS[shift:], *OPTIONS[:shift]]
        prompt = prompt_of(tiny_lm, [{"role": "user", "content": CLEAN}], asked("choice", order))
        expected, _ = answer_of(tiny_lm, prompt, ["A", "B", "C"])
        rows.append(np.roll(expected, shift))
        total += rows[-1] / 3
    assert probabilities(found) == pytest.approx(total, abs=EXACT)
    assert np.abs(rows[0] - total).max() > 10 * EXACT, "the control: the order matters to this model"
    turned = [*OPTIONS[1:], OPTIONS[0]]
    (same,) = decide(plain, CLEAN, [choice(turned)], debias="rotations", calibrated=False)["answers"]
    by_value = {each["value"]: each["probability"] for each in same["probabilities"]}
    assert [by_value[value] for value, _ in OPTIONS] == pytest.approx(total, abs=EXACT)


def test_answers_are_calibrated_unless_asked_not_to(api: Api) -> None:
    raw = decide(api, CLEAN, QUESTIONS, calibrated=False)["answers"]
    found = decide(api, CLEAN, QUESTIONS)["answers"]
    for before, after in zip(raw, found, strict=True):
        powers = np.array(probabilities(before)) ** (1 / TEMPERATURES.get(before["type"], 1.0))
        assert probabilities(after) == pytest.approx(powers / powers.sum(), abs=EXACT)
        assert before["label_mass"] == pytest.approx(after["label_mass"], abs=EXACT)
    assert abs(probabilities(raw[1])[0] - probabilities(found[1])[0]) > 10 * EXACT


def test_400_questions_are_each_as_alone(plain: Api) -> None:
    questions = [choice(name=str(index), instructions=f"What is it, {index % 5}?") for index in range(400)]
    answers = decide(plain, CLEAN, questions)["answers"]
    assert [each["name"] for each in answers] == [str(index) for index in range(400)]
    for index in range(5):
        (alone,) = decide(plain, CLEAN, [questions[index]])["answers"]
        for found in answers[index::5]:
            assert probabilities(found) == pytest.approx(probabilities(alone), abs=EXACT)
    assert abs(probabilities(answers[0])[0] - probabilities(answers[1])[0]) > EXACT


@pytest.mark.exhaustive  # a minute
def test_many_options_have_labels_of_two_letters(api: Api, smollm: Path) -> None:
    many = [(str(index), None) for index in range(255)]
    questions = [choice(many), choice(many[:27])]
    answers = decide(api, CLEAN, questions, calibrated=False)["answers"]
    pairs = [a + b for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for b in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    one_token = [each for each in pairs if is_one_token(smollm, each)]
    for found, count in zip(answers, (255, 27), strict=False):
        labels = one_token[:count]
        text = f"What does it ask for?\n{listed(labels, many[:count])}\n{ENDINGS['choice']}"
        expected, mass = answer_of(
            smollm, prompt_of(smollm, [{"role": "user", "content": CLEAN}], text), labels
        )
        assert probabilities(found) == pytest.approx(expected, abs=EXACT)
        assert found["label_mass"] == pytest.approx(mass, abs=EXACT)


@pytest.fixture(scope="module")
def roomy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """With the default limit on bodies, and a low one on tokens: the CPU could not compute more in time."""
    with api_of(server, tmp_path_factory.mktemp("api") / "api.log", max_call_tokens=CALL_TOKENS) as running:
        yield running


def long_options(characters: int) -> list[tuple[str, None]]:
    text = "the customer wants money back for an order that came late " * 6
    return [(f"{index} {text}"[:characters], None) for index in range(255)]


def too_much(characters: int) -> list[tuple[str, dict[str, Any]]]:
    """400 questions of 255 options, for either route."""
    options = long_options(characters)
    named = {
        str(index): {"type": "choice", "instructions": f"{index}?", "criteria": dict(options)}
        for index in range(400)
    }
    as_list = [choice(options, instructions=f"{index}?") for index in range(400)]
    return [
        ("/v1/decisions", {"input": CLEAN, "questions": as_list}),
        ("/v1/systemone", {"state": CLEAN, "questions": named}),
    ]


def test_too_many_long_options_are_refused_beside_a_small_call(roomy: Api, smollm: Path) -> None:
    expected = [probabilities(each) for each in decide(roomy, CLEAN, QUESTIONS)["answers"]]
    cases = [(100, f"at most {CALL_TOKENS} in one call (MAX_CALL_TOKENS)"), (250, "(MAX_CONTEXT)")]
    sent = [(route, body, message) for characters, message in cases for route, body in too_much(characters)]
    with ThreadPoolExecutor(len(sent)) as pool:
        refused = [pool.submit(call, roomy, route, body) for route, body, _ in sent]
        while True:
            found = decide(roomy, CLEAN, QUESTIONS)["answers"]
            for answer, each in zip(found, expected, strict=True):
                assert probabilities(answer) == pytest.approx(each, abs=EXACT)
            if all(each.done() for each in refused):
                break
    for (_, _, message), each in zip(sent, refused, strict=True):
        reply = each.result()
        assert reply.status == 400, reply.body[:500]
        assert message in reply.json["error"]["message"]
    # The control: less of the same fits, and is answered.
    options = long_options(100)[:27]
    (fits,) = decide(roomy, CLEAN, [choice(options)])["answers"]
    labels = [a + b for a in ascii_uppercase for b in ascii_uppercase if is_one_token(smollm, a + b)][:27]
    text = f"What does it ask for?\n{listed(labels, options)}\n{ENDINGS['choice']}"
    prompt = prompt_of(smollm, [{"role": "user", "content": CLEAN}], text)
    assert probabilities(fits) == pytest.approx(answer_of(smollm, prompt, labels)[0], abs=EXACT)


def is_one_token(checkpoint: Path, text: str) -> bool:
    return len(tokenizer_of(checkpoint)(f"\n{text}", add_special_tokens=False)["input_ids"]) == 2


def test_a_boolean_is_not_its_text(api: Api) -> None:
    both = choice([("true", None), (True, None), (False, None)])
    (found,) = decide(api, CLEAN, [both])["answers"]
    values = [each["value"] for each in found["probabilities"]]
    assert [(type(value), value) for value in values] == [(str, "true"), (bool, True), (bool, False)]


BOX = {"type": "box", "instructions": "the dog"}
IMAGE = {"type": "input_image", "image_url": "http://x"}


def body(**changes: Any) -> dict[str, Any]:
    return {"input": "a", "questions": [QUESTIONS[0]], **changes}


def one(question: Any) -> dict[str, Any]:
    return {"state": "a", "questions": {"q": question}}


BAD: list[tuple[str, Any, str]] = [
    ("decisions", body(questions=[]), "1 to 400"),
    ("decisions", body(questions=[QUESTIONS[0]] * 401), "401 questions"),
    ("decisions", body(questions=[QUESTIONS[0]] * 2), "questions 0 and 1 have the same name"),
    ("decisions", body(questions=[choice(OPTIONS[:1])]), "'questions[0].choices' holds 1 options"),
    ("decisions", body(questions=[choice([(str(i), None) for i in range(256)])]), "256 options"),
    ("decisions", body(questions=[choice([("a", None), ("a", "b")])]), "questions[0].choices[1].value"),
    ("decisions", body(questions=[choice([("a", None), (1, None)])]), "questions[0].choices[1].value"),
    ("decisions", body(questions=[{**QUESTIONS[2], "levels": [{"label": "a"}] * 2}]), "levels[1].label"),
    ("decisions", body(questions=[{**QUESTIONS[2], "levels": [{"label": str(i)} for i in range(11)]}]), "2 to 10"),
    ("decisions", body(questions=[{"type": "predicate"}]), "instructions"),
    ("decisions", body(questions=[{**QUESTIONS[0], "weight": 2}]), "'weight' is not a field"),
    ("decisions", body(questions=[{"type": "poem", "instructions": "a"}]), "poem"),
    ("decisions", body(questions=[{**QUESTIONS[0], "instructions": [IMAGE]}]), "input_image"),
    ("decisions", body(input=[]), "'input' is empty"),
    ("decisions", body(input=[{"role": "user", "content": [IMAGE]}]), "'input[0].content[0]' is 'input_image'"),
    ("decisions", body(input=[{"role": "user", "content": [{"type": "input_file"}]}]), "input_file"),
    ("decisions", body(input=[{"role": "user", "content": [{"type": "input_audio"}]}]), "input_audio"),
    ("decisions", body(input=[{"role": "user", "content": [{"type": "refusal", "refusal": "a"}]}]), "cannot hold"),
    ("decisions", body(input=[{"role": "tool", "content": "a"}]), "input[0].role"),
    ("decisions", body(input=[{"role": "user"}]), "'input[0].content' is missing"),
    ("decisions", body(input=[{"role": "user", "content": "a", "output": "b"}]), "no place"),
    ("decisions", body(input=[{"type": "function_call_output", "call_id": "9", "output": "b"}]), "no earlier"),
    ("decisions", body(input=7), "input"),
    ("decisions", body(temperature=1), "'temperature' is not a field"),
    ("decisions", body(debias="shuffle"), "debias"),
    ("decisions", body(input="word " * 9_000), "MAX_CONTEXT"),
    ("decisions", b'{"input": "\\ud800", "questions": []}', "JSON"),
    ("decisions", b'{"input": NaN, "questions": []}', "JSON"),
    ("decisions", b'{"input": "a", "input": "b", "questions": []}', "twice"),
    ("systemone", one({"type": "noul"}), "neither instructions nor criteria"),
    ("systemone", one(BOX), "box"),
    ("systemone", one({"type": "choice", "criteria": {"a": None}}), "'questions.q.criteria' holds 1 options"),
    ("systemone", one({"type": "score", "criteria": ["a"]}), "2 to 10"),
    ("systemone", {"state": "a", "questions": {}}, "1 to 400"),
    ("systemone", {"state": "a", "questions": {"q": QUESTIONS[0]}, "images": ["x"]}, "questions"),
    ("systemone", {**one({"type": "noul", "instructions": "x"}), "images": ["x"]}, "'images'"),
    ("systemone", {**one({"type": "noul", "instructions": "x"}), "assets": {"x": {}}}, "'assets'"),
    ("systemone", {"state": 3, "questions": {}}, "state"),
    ("systemone", b'{"state": "a", "questions": {"q": {"type": "noul", "instructions": "x"}, '
                  b'"q": {"type": "noul", "instructions": "y"}}}', "'q' is there twice"),
    ("systemone", b'{"state": ' + b"[" * 40 + b"]" * 40 + b', "questions": {"q": {"type": "noul", '
                  b'"instructions": "x"}}}', "32 levels"),
    ("systemone", b'{"state": ' + b'{"a":' * 9_000 + b"1" + b"}" * 9_000 + b', "questions": {}}', "too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "sent", "names"), BAD)
def test_bad_requests_are_told_what_is_wrong(api: Api, route: str, sent: Any, names: str) -> None:
    reply = call(api, f"/v1/{route}", sent, x_request_id="mine")
    assert reply.status == 400, reply.body
    error = reply.json["error"]
    assert names in error["message"], error
    assert error["type"] == "invalid_request_error"
    assert error["request_id"] == reply.headers["x-request-id"] == "mine"
    assert leak(reply.body.decode()) == ""


def test_what_cannot_change_an_answer_is_accepted(api: Api) -> None:
    known: Reply = call(
        api,
        "/v1/decisions",
        body(prompt_cache_key="k", prompt_cache_options={"ttl": "30m"}, safety_identifier="s", user="u"),
    )
    assert known.status == 200
