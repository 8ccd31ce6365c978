"""OpenAI's client: completions and chat, streamed and not, log-probabilities, several choices, schemas, errors."""

import openai
from exchange import GIVEN, answer
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{GIVEN['url']}/v1", api_key="any", max_retries=0)
chat = client.chat.completions
asked = {"model": "any", "messages": GIVEN["messages"], "temperature": 0, "max_completion_tokens": 12}


class City(BaseModel):
    name: str
    capital: bool


whole = chat.create(**asked, logprobs=True, top_logprobs=2, n=2)
streamed = list(chat.create(**asked, stream=True, stream_options={"include_usage": True}))
with chat.stream(**asked) as stream:
    events = [event.type for event in stream]
    final = stream.get_final_completion()
text = client.completions.create(model="any", prompt=GIVEN["prompt"], temperature=0, max_tokens=8, logprobs=1)
text_streamed = list(
    client.completions.create(model="any", prompt=GIVEN["prompt"], temperature=0, max_tokens=8, stream=True)
)
parsed = chat.parse(**{**asked, "max_completion_tokens": 60}, response_format=City)

errors = []
for call in (
    lambda: chat.create(**{**asked, "messages": []}),
    lambda: chat.create(**asked, extra_body={"lora_path": "x"}),
):
    try:
        call()
    except openai.APIStatusError as error:
        errors.append([type(error).__name__, error.param, error.status_code])

message = whole.choices[0].message
answer(
    content=message.content,
    role=message.role,
    contents=[choice.message.content for choice in whole.choices],
    finish=whole.choices[0].finish_reason,
    tokens=[each.token for each in whole.choices[0].logprobs.content],
    tops=[len(each.top_logprobs) for each in whole.choices[0].logprobs.content],
    usage=whole.usage.model_dump(),
    streamed="".join(each.choices[0].delta.content or "" for each in streamed if each.choices),
    streamed_finish=[each.choices[0].finish_reason for each in streamed if each.choices][-1],
    streamed_usage=streamed[-1].usage.model_dump(),
    events=events,
    final=final.choices[0].message.content,
    text=text.choices[0].text,
    text_tokens=text.choices[0].logprobs.tokens,
    text_streamed="".join(each.choices[0].text for each in text_streamed),
    parsed=parsed.choices[0].message.parsed.model_dump(),
    errors=errors,
)
