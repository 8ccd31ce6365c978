from exchange import GIVEN, answer
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIARerank

ranker = NVIDIARerank(base_url=f"{GIVEN['url']}/v1", model="any", api_key=GIVEN["key"], top_n=3)
ranked = ranker.compress_documents(
    [Document(page_content=each) for each in GIVEN["documents"]], GIVEN["query"]
)
answer(
    found=[[GIVEN["documents"].index(each.page_content), each.metadata["relevance_score"]] for each in ranked]
)
