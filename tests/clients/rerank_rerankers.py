"""The package rerankers, as it calls Cohere, Jina and Text Embeddings Inference."""

from exchange import GIVEN, answer
from rerankers.models.api_rankers import URLS, APIRanker

url = GIVEN["url"]
# Of the first two the package knows the services' own addresses alone.
URLS.update(cohere=f"{url}/v1/rerank", jina=f"{url}/v1/rerank")
rankers = {
    "cohere": APIRanker("any", GIVEN["key"], "cohere"),
    "jina": APIRanker("any", GIVEN["key"], "jina"),
    "tei": APIRanker("any", GIVEN["key"], "text-embeddings-inference", url=f"{url}/rerank"),
}
found = {}
for name, ranker in rankers.items():
    ranked = ranker.rank(GIVEN["query"], GIVEN["documents"])
    found[name] = [[each.doc_id, each.score] for each in ranked.results]
answer(**found)
