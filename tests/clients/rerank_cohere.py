import cohere
from exchange import GIVEN, answer

client = cohere.ClientV2(GIVEN["key"], base_url=GIVEN["url"])
reply = client.rerank(model="any", query=GIVEN["query"], documents=GIVEN["documents"], top_n=2)
errors = []
for key, documents in ((GIVEN["key"], []), ("other", GIVEN["documents"])):
    try:
        cohere.ClientV2(key, base_url=GIVEN["url"]).rerank(model="any", query="a", documents=documents)
    except cohere.core.api_error.ApiError as error:
        errors.append([type(error).__name__, str(error.body)])
answer(found=[[each.index, each.relevance_score] for each in reply.results], errors=errors)
