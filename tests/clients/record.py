"""Record the bodies that clients' own packages send, into tests/data/client_bodies.jsonl.

usage: .venv/clients/bin/python tests/clients/record.py [CLIENT ...]

instructor, pydantic-ai-slim[openai] and openai-agents want another version of openai: run this once more in an
environment that has them, with their names. The bodies of other clients stay as they were recorded. No body is
written by hand: each is what a package makes of a call below, and of the answers of the server below, which calls
tools wherever it may.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Iterable, Literal  # noqa: UP035 - as instructor knows it

os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "NO_PROXY": "*",
}

from pydantic import BaseModel, Field

FILE = Path(__file__).resolve().parents[1] / "data" / "client_bodies.jsonl"
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
MORE: Any = {"role": "user", "content": "And tomorrow?"}
QUERY, DOCUMENTS = "a fruit", ["an apple", "a hammer", "rain"]
QUESTIONS: list[Any] = [
    {"type": "predicate", "name": "refund", "instructions": "The customer wants a refund."},
    {
        "type": "choice",
        "instructions": "Which team?",
        "choices": [{"value": "billing"}, {"value": "shipping"}],
    },
]


class Address(BaseModel):
    """An address."""

    street: str
    number: int | None = None


class Person(BaseModel):
    """A person, with models in it and itself."""

    name: str = Field(min_length=1, description="The whole name")
    kind: Literal["friend", "stranger"]
    age: int = Field(ge=0, le=150)
    addresses: list[Address]
    friends: list["Person"]


class Weather(BaseModel):
    """Look the weather up."""

    city: str
    unit: Literal["C", "F"]
    place: Address | None


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def instance(schema: Any, root: Any) -> Any:
    """Some value of a schema, as a model would answer."""
    if "$ref" in schema:
        found = root
        for part in schema["$ref"].split("/")[1:]:
            found = found[part]
        return instance(found, root)
    if "anyOf" in schema:
        return instance(schema["anyOf"][-1], root)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    properties = schema.get("properties", {}).items()
    kinds = {"string": "Oslo", "integer": 7, "number": 1.5, "boolean": True, "null": None, "array": []}
    return kinds.get(schema.get("type"), {name: instance(each, root) for name, each in properties})


def message_for(body: Any) -> dict[str, Any]:
    """The message of the assistant: a call of a tool that was not called yet, or an answer by the schema."""
    functions = body.get("functions") or [each["function"] for each in body.get("tools") or []]
    chosen, last = body.get("tool_choice"), body["messages"][-1]["role"]
    if functions and chosen != "none" and last not in ("tool", "function"):
        named = chosen.get("function", functions[0]) if isinstance(chosen, dict) else functions[0]
        (schema,) = (each["parameters"] for each in functions if each["name"] == named["name"])
        called = {"name": named["name"], "arguments": json.dumps(instance(schema, schema))}
        call = {"id": "call_1", "type": "function", "function": called}
        made = {"function_call": called} if body.get("functions") else {"tool_calls": [call]}
        return {"role": "assistant", "content": None, **made}
    form = body.get("response_format") or {}
    schema = (form.get("json_schema") or form).get("schema") or {}
    content = json.dumps(instance(schema, schema)) if form.get("type", "text") != "text" else "Rain."
    return {"role": "assistant", "content": content, "reasoning_content": "Hm."}


def answer_to(path: str, body: Any) -> Any:
    """An answer in the shape of the path's family."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "1", "created": 1, "model": "any", "usage": usage}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if path.endswith("/chat/completions"):
        message = message_for(body)
        called = [name for name in ("tool_calls", "function_call") if name in message]
        choice |= {"message": message, "finish_reason": called[0] if called else "stop"}
        return {**head, "object": "chat.completion", "choices": [choice]}
    if path.endswith("/completions"):
        return {**head, "object": "text_completion", "choices": [choice | {"text": "Rain."}]}
    if path.endswith("/ranking"):
        return {"rankings": [{"index": index, "logit": 0.0} for index in range(len(body["passages"]))]}
    if "texts" in body:
        return [{"index": index, "score": 0.5} for index in range(len(body["texts"]))]
    if path.endswith("/rerank"):
        ranked = [{"index": index, "relevance_score": 0.5} for index in range(len(body["documents"]))]
        return {"id": "1", "results": ranked, "usage": usage}
    return {**head, "object": "list", "answers": [], "data": [{"index": 0, "embedding": [0.0]}]}


def events_of(answer: Any) -> list[Any]:
    """A whole answer as a stream of two events."""
    chunk = {**answer, "object": answer["object"].replace("chat.completion", "chat.completion.chunk")}
    choice = dict(answer["choices"][0])
    if message := choice.pop("message", None):
        calls = [{**call, "index": index} for index, call in enumerate(message.get("tool_calls", []))]
        choice["delta"] = {**message, **({"tool_calls": calls} if calls else {})}
    return [{**chunk, "choices": [choice], "usage": None}, {**chunk, "choices": []}]


class Recorder(BaseHTTPRequestHandler):
    """Answers every request, and keeps its body."""

    bodies: ClassVar[list[tuple[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append((self.path, body))
        answer, streams = answer_to(self.path, body), body.get("stream")
        events = [*map(json.dumps, events_of(answer)), "[DONE]"] if streams else []
        content = "".join(f"data: {each}\n\n" for each in events) or json.dumps(answer)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: Any) -> None:
        pass


def passed_on(client: str, methods: dict[str, Callable[..., Any]]) -> dict[str, Callable[[], Any]]:
    """Calls with the fields of the rows themselves, for packages that send what they are given."""

    def call(path: str, body: dict[str, Any]) -> Any:
        own = {name for name in body if name in signature(methods[path]).parameters}
        more = {name: value for name, value in body.items() if name not in own}
        fields = {name: body[name] for name in own} | ({"extra_body": more} if more else {})
        answer = methods[path](**fields)
        return list(answer) if body.get("stream") else answer

    return {
        row["case"]: partial(call, row["path"], row["body"])
        for row in rows()
        if row["client"].split()[0] == client and row["path"] in methods
    }


def by_openai(url: str) -> dict[str, Callable[[], Any]]:
    from openai import OpenAI, pydantic_function_tool

    client = OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    chat, tool = client.chat.completions, pydantic_function_tool(Weather)
    function: Any = {"name": "Weather", "parameters": Weather.model_json_schema()}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    create, parse = partial(chat.create, model="any"), partial(chat.parse, model="any", messages=ASK)

    def streamed() -> Any:
        with chat.stream(model="any", messages=ASK, response_format=Person) as stream:
            return stream.get_final_completion()

    def back(first: Callable[[], Any], *then: Any, dumps: bool = False, **options: Any) -> None:
        message = first().choices[0].message
        create(messages=[*ASK, message.model_dump() if dumps else message, *then], **options)

    ask, called = partial(create, messages=ASK), partial(parse, tools=[tool])
    legacy = {"role": "function", "name": "Weather", "content": "rain"}
    methods = {
        "/v1/chat/completions": chat.create,
        "/v1/completions": client.completions.create,
        "/v1/decisions": client.decisions.create,
        "/v1/embeddings": client.embeddings.create,
    }
    made = {
        "parse": partial(parse, response_format=Person),
        "parsed message sent back": partial(back, partial(parse, response_format=Person), MORE),
        "streamed message sent back": partial(back, streamed, MORE),
        "message sent back": partial(back, ask, MORE),
        "dumped message sent back": partial(back, ask, MORE, dumps=True),
        "a tool called and sent back": partial(back, partial(ask, tools=[tool]), result, tools=[tool]),
        "parsed arguments sent back": partial(back, called, result, tools=[tool]),
        "dumped call sent back": partial(back, called, result, tools=[tool], dumps=True),
        "tools beside a schema": partial(called, response_format=Person),
        "tools required beside a schema": partial(called, response_format=Person, tool_choice="required"),
        "function called and sent back": partial(back, partial(ask, functions=[function]), legacy),
    }
    # Of a case of two bodies, each is a row.
    of_rows = passed_on("openai", methods)
    return {case: call for case, call in of_rows.items() if case.partition(", ")[0] not in made} | made


def by_cohere(url: str) -> dict[str, Callable[[], Any]]:
    import cohere

    clients = cohere.Client("any", base_url=url), cohere.ClientV2("any", base_url=url)
    return passed_on("cohere", {f"/v{at + 1}/rerank": client.rerank for at, client in enumerate(clients)})


def by_litellm(url: str) -> dict[str, Callable[[], Any]]:
    import litellm

    def ask(provider: str = "hosted_vllm", messages: Any = ASK, **options: Any) -> Any:
        return litellm.completion(f"{provider}/any", messages, api_base=f"{url}/v1", api_key="any", **options)

    def rank(provider: str, path: str, **options: Any) -> Any:
        return litellm.rerank(
            f"{provider}/any", QUERY, DOCUMENTS, api_base=url + path, api_key="any", **options
        )

    tools = [{"type": "function", "function": {"name": "Weather", "parameters": Weather.model_json_schema()}}]
    result = {"role": "tool", "tool_call_id": "call_1", "name": "Weather", "content": "rain"}
    return {
        "openai": lambda: ask("openai"),
        "hosted_vllm": lambda: ask(temperature=0, max_tokens=9, top_k=5),
        "stream": lambda: list(ask(stream=True, stream_options={"include_usage": True})),
        "a model as the form": lambda: ask(response_format=Person),
        "message sent back": lambda: ask(messages=[*ASK, ask().choices[0].message, MORE]),
        "dumped message sent back": lambda: ask(
            "openai", messages=[*ASK, ask().choices[0].message.model_dump(), MORE]),
        "tools": lambda: ask(tools=tools, tool_choice="required"),
        "a tool called and sent back": lambda: ask(
            messages=[*ASK, ask(tools=tools).choices[0].message, result], tools=tools),
        "reasoning": lambda: ask(reasoning_effort="low"),
        "decisions": lambda: litellm.decisions(
            model="hosted_vllm/any", input="a", questions=QUESTIONS, api_base=f"{url}/v1", api_key="any"),
        "text": lambda: litellm.text_completion(
            model="hosted_vllm/any", prompt="a", api_base=f"{url}/v1", api_key="any", max_tokens=3),
        "rerank as cohere": lambda: rank("cohere", "/v2/rerank", top_n=2),
        "rerank as hosted_vllm": lambda: rank("hosted_vllm", "", truncate_prompt_tokens=512),
        "rerank as jina_ai": lambda: rank("jina_ai", "/v1/rerank", return_documents=True),
        "rerank as huggingface": lambda: rank("huggingface", ""),
        "ranking as nvidia_nim": lambda: litellm.rerank(
            "nvidia_nim/ranking/any", QUERY, DOCUMENTS, api_base=url, api_key="any"),
    }  # fmt: skip


def by_langchain(url: str) -> dict[str, Callable[[], Any]]:
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAI

    given: Any = {"model": "any", "base_url": f"{url}/v1", "api_key": "any", "max_retries": 0}
    model = ChatOpenAI(**given, temperature=0, max_tokens=9)
    asked = [SystemMessage("Short!"), HumanMessage("What is the weather in Oslo?")]
    tooled = model.bind_tools([Weather])
    return {
        "invoke": lambda: model.invoke(asked),
        "stream": lambda: list(model.stream(asked, stream_usage=True)),
        "message sent back": lambda: model.invoke([*asked, model.invoke(asked), HumanMessage("And?")]),
        "tools": lambda: model.bind_tools([Weather, Person], tool_choice="any").invoke(asked),
        "a tool called and sent back": lambda: tooled.invoke(
            [*asked, tooled.invoke(asked), ToolMessage("rain", tool_call_id="call_1")]),
        "form by a call": lambda: model.with_structured_output(Person, method="function_calling").invoke(asked),
        "form by a schema": lambda: model.with_structured_output(Person, method="json_schema").invoke(asked),
        "form by JSON": lambda: model.with_structured_output(Address, method="json_mode").invoke(asked),
        "text": lambda: OpenAI(**given, max_tokens=3).invoke("a"),
    }  # fmt: skip


def by_nvidia(url: str) -> dict[str, Callable[[], Any]]:
    from langchain_core.documents import Document
    from langchain_nvidia_ai_endpoints import NVIDIARerank

    ranker = NVIDIARerank(base_url=f"{url}/v1", model="any", api_key="any", truncate="END")
    return {"ranking": lambda: ranker.compress_documents([Document(each) for each in DOCUMENTS], QUERY)}


def by_rerankers(url: str) -> dict[str, Callable[[], Any]]:
    from rerankers.models.api_rankers import URLS, APIRanker

    URLS.update(cohere=f"{url}/v1/rerank", jina=f"{url}/v1/rerank")
    tei = APIRanker("any", "any", "text-embeddings-inference", url=f"{url}/rerank")
    return {
        **{
            name: partial(APIRanker("any", "any", name).rank, QUERY, DOCUMENTS) for name in ("cohere", "jina")
        },
        "tei": lambda: tei.rank(QUERY, DOCUMENTS),
    }


def by_typesafe(url: str) -> dict[str, Callable[[], Any]]:
    from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

    client = TypeSafeClient(api_key="any", base_url=url, model="any", compression=False)
    asked = {
        "refund": Noul(instructions="The customer wants a refund."),
        "team": Choice(instructions="Which team?", criteria={"billing": "payments", "shipping": None}),
        "anger": Score(instructions="How angry?", criteria=["calm", "furious"]),
    }
    return {"system_one": lambda: client.system_one(state={"letter": "a"}, questions=asked)}


def by_aiperf(url: str) -> dict[str, Callable[[], Any]]:
    import aiperf  # noqa: F401 - a program, which is there if the package is

    def profile(kind: str, *options: str) -> None:
        program = Path(sys.executable).with_name("aiperf")
        (tokenizer,) = Path("~/.cache/hiscore").expanduser().glob("SmolLM2*")
        with tempfile.TemporaryDirectory() as directory:
            given = {"endpoint-type": kind, "url": url, "model": "any", "tokenizer": tokenizer, "ui": "none",
                     "request-count": 1, "random-seed": 1, "artifact-dir": directory}  # fmt: skip
            flags = [str(each) for name, value in given.items() for each in (f"--{name}", value)]
            subprocess.run([program, "profile", *flags, *options], check=True, capture_output=True)

    rank = ("--rankings-passages-mean", "2", "--rankings-passages-prompt-token-mean", "9")
    chat = ("--isl", "9", "--osl", "4", "--streaming")
    return {
        **{kind: partial(profile, kind, *chat) for kind in ("chat", "completions")},
        **{
            kind: partial(profile, kind, *rank)
            for kind in ("cohere-rankings", "hf-tei-rankings", "nim-rankings")
        },
    }


def by_instructor(url: str) -> dict[str, Callable[[], Any]]:
    import instructor
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)

    def ask(mode: str, wanted: Any = Person) -> Any:
        made = instructor.from_openai(client, mode=instructor.Mode[mode])
        return made.chat.completions.create(model="any", messages=ASK, response_model=wanted, max_retries=1)

    modes = ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON")
    several = {"Mode.PARALLEL_TOOLS": lambda: list(ask("PARALLEL_TOOLS", Iterable[Person]))}
    return {f"Mode.{mode}": partial(ask, mode) for mode in modes} | several


def by_pydantic_ai(url: str) -> dict[str, Callable[[], Any]]:
    from pydantic_ai import Agent, NativeOutput, PromptedOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="any"))

    def weather(city: str, place: Address) -> str:
        """Look the weather up."""
        return "rain"

    def ask(**options: Any) -> Any:
        return Agent(model, **options).run_sync("What is the weather in Oslo?")

    return {
        "text": ask,
        "form": lambda: ask(output_type=Person),
        "form or form": lambda: ask(output_type=[Person, Address]),
        "native form": lambda: ask(output_type=NativeOutput(Person)),
        "prompted form": lambda: ask(output_type=PromptedOutput(Person)),
        "tools": lambda: ask(tools=[weather], instructions="Short!"),
        "tools and a native form": lambda: ask(tools=[weather], output_type=NativeOutput(Person)),
    }


def by_agents(url: str) -> dict[str, Callable[[], Any]]:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def weather(city: str, place: Address) -> str:
        """Look the weather up."""
        return "rain"

    def ask(**options: Any) -> Any:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        agent = Agent(
            name="a", instructions="Short!", model=OpenAIChatCompletionsModel("any", client), **options
        )
        return asyncio.run(Runner.run(agent, "What is the weather in Oslo?"))

    required = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    return {
        "text": ask,
        "form": lambda: ask(output_type=Person),
        "tools": lambda: ask(tools=[weather]),
        "tools and a form": lambda: ask(tools=[weather], output_type=Person),
        "tools required and a form": lambda: ask(
            tools=[weather], output_type=Person, model_settings=required
        ),
        "a handoff": lambda: ask(handoffs=[Agent(name="other")]),
    }


CLIENTS = {
    "openai": by_openai,
    "cohere": by_cohere,
    "litellm": by_litellm,
    "langchain-openai": by_langchain,
    "langchain-nvidia-ai-endpoints": by_nvidia,
    "rerankers": by_rerankers,
    "typesafe-sdk": by_typesafe,
    "aiperf": by_aiperf,
    "instructor": by_instructor,
    "pydantic-ai-slim": by_pydantic_ai,
    "openai-agents": by_agents,
}


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    kept = rows()
    for client in sys.argv[1:] or CLIENTS:
        try:
            calls = CLIENTS[client](url)
        except ImportError as error:
            print(f"{client}: as it was recorded, since {error}")
            continue
        kept = [each for each in kept if each["client"].split()[0] != client]
        for case, call in calls.items():
            Recorder.bodies.clear()
            try:
                call()
            except Exception as error:
                print(f"{client}, {case}: {error!r}"[:300])
            if not Recorder.bodies:
                raise SystemExit(f"{client}, {case}: no body came")
            for step, (path, body) in enumerate(Recorder.bodies):
                row = {"client": f"{client} {version(client)}", "case": case, "path": path, "body": body}
                if not any(each["body"] == body and each["client"] == row["client"] for each in kept):
                    kept.append(row | {"case": f"{case}, {step + 1}"} if step else row)
    FILE.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in kept))
    print(f"{len(kept)} bodies")


if __name__ == "__main__":
    main()
