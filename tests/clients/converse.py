"""Completions and chat, whole and streamed, by OpenAI's own client, LangChain's and LiteLLM's."""

import litellm
from exchange import GIVEN, answer
from langchain_openai import ChatOpenAI
from openai import OpenAI

V1, KEY, MESSAGES, TOKENS = f"{GIVEN['url']}/v1", GIVEN["key"], GIVEN["messages"], GIVEN["tokens"]
OPTIONS = {"temperature": 0, "max_tokens": TOKENS}

client = OpenAI(base_url=V1, api_key=KEY, max_retries=0)
whole = client.chat.completions.create(model="any", messages=MESSAGES, **OPTIONS)
chat = {"openai": whole.choices[0].message.content}
text, usage = "", None
for chunk in client.chat.completions.create(
    model="any", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **OPTIONS
):
    text += "".join(choice.delta.content or "" for choice in chunk.choices)
    usage = chunk.usage or usage
chat["openai, streamed"] = text
langchain = ChatOpenAI(model="any", base_url=V1, api_key=KEY, **OPTIONS)
chat["langchain"] = langchain.invoke(MESSAGES).content
chat["langchain, streamed"] = "".join(each.content for each in langchain.stream(MESSAGES))
for provider in ("openai", "hosted_vllm"):
    reply = litellm.completion(
        model=f"{provider}/any", messages=MESSAGES, api_base=V1, api_key=KEY, **OPTIONS
    )
    chat[f"litellm, {provider}"] = reply.choices[0].message.content

completions = {
    "openai": client.completions.create(model="any", prompt=GIVEN["prompt"], **OPTIONS).choices[0].text
}
completions["openai, streamed"] = "".join(
    each.choices[0].text
    for each in client.completions.create(model="any", prompt=GIVEN["prompt"], stream=True, **OPTIONS)
    if each.choices
)

too_long = {"messages": [{"role": "user", "content": GIVEN["too_long"]}]}
errors = []
for call in (
    lambda: client.chat.completions.create(model="any", **too_long),
    lambda: langchain.invoke(too_long["messages"]),
    lambda: litellm.completion(model="openai/any", api_base=V1, api_key=KEY, **too_long),
    lambda: litellm.completion(model="hosted_vllm/any", api_base=V1, api_key=KEY, **too_long),
    # As a control: another bad request.
    lambda: litellm.completion(model="openai/any", api_base=V1, api_key=KEY, messages=MESSAGES, top_p=9),
):
    try:
        call()
    except Exception as error:
        errors.append([type(error).__name__, getattr(error, "code", None)])
answer(
    errors=errors,
    chat=chat,
    completions=completions,
    usage=[whole.usage.to_dict(), usage.to_dict()],
    models=[each.id for each in client.models.list()],
)
