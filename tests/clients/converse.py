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
answer(
    chat=chat,
    completions=completions,
    usage=[whole.usage.to_dict(), usage.to_dict()],
    models=[each.id for each in client.models.list()],
)
