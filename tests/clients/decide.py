"""Decisions by OpenAI's own client, LangChain's and LiteLLM's; System One by its SDK and by LiteLLM."""

import litellm
from exchange import GIVEN, answer
from langchain_openai import decisions
from openai import BadRequestError, OpenAI
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

URL, KEY, TEXT = GIVEN["url"], GIVEN["key"], GIVEN["text"]
V1 = f"{URL}/v1"

client = OpenAI(base_url=V1, api_key=KEY, max_retries=0)
questions = GIVEN["questions"]
decision = client.decisions.create(model="any", input=TEXT, questions=questions)
found = {"openai": [each.to_dict() for each in decision.answers]}
try:
    client.decisions.create(model="any", input=TEXT, questions=[])
except BadRequestError as error:
    refused = str(error)

typed = {
    "refund": decisions.Predicate(instructions=questions[0]["instructions"]),
    "team": decisions.Choice(
        instructions=questions[1]["instructions"],
        choices={each["value"]: each.get("description") for each in questions[1]["choices"]},
    ),
    "anger": decisions.Score(
        instructions=questions[2]["instructions"], levels=[each["label"] for each in questions[2]["levels"]]
    ),
}
runnable = decisions.OpenAIDecisions(model="any", base_url=V1, api_key=KEY)
langchain = runnable.invoke({"input": TEXT, "questions": typed})
found["langchain"] = [
    {"probability": langchain.predicates["refund"].probability},
    {"choice": langchain.choices["team"].choice},
    {"score": langchain.scores["anger"].score},
]
vllm = litellm.decisions(
    model="hosted_vllm/any", input=TEXT, questions=questions, api_base=V1, api_key=KEY, num_retries=0
)
found["litellm"] = [each if isinstance(each, dict) else each.model_dump() for each in vllm.answers]

asked = {
    "refund": Noul(instructions="The customer wants a refund."),
    "team": Choice(instructions="Which team?", criteria={"billing": "payments", "shipping": None}),
    "anger": Score(instructions="How angry?", criteria=["calm", "annoyed", "furious"]),
}
# Long enough to be sent compressed.
state = {"letter": TEXT, "history": [TEXT] * 40}
systemone = {}
for compression in ("zstd", False):
    with TypeSafeClient(api_key=KEY, base_url=URL, model="any", compression=compression) as typesafe:
        reply = typesafe.system_one(state=state, questions=asked)
    systemone[str(compression)] = {
        "refund": reply.nouls["refund"].noul,
        "team": reply.choices["team"].probabilities,
        "anger": reply.scores["anger"].score,
    }
answer(found=found, refused=refused, systemone=systemone, state=state)
