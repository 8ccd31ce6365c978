"""LiteLLM, as it calls Cohere, vLLM and Jina."""

import litellm
from exchange import GIVEN, answer

url = GIVEN["url"]
bases = {"cohere": f"{url}/v2/rerank", "hosted_vllm": url, "jina_ai": f"{url}/v1/rerank"}
found = {}
for provider, base in bases.items():
    reply = litellm.rerank(
        model=f"{provider}/any",
        query=GIVEN["query"],
        documents=GIVEN["documents"],
        top_n=3,
        api_base=base,
        api_key=GIVEN["key"],
    )
    found[provider] = [[each["index"], each["relevance_score"]] for each in reply.results]
answer(**found)
