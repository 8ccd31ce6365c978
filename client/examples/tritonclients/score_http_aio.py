"""Score three queries at once over HTTP, by asyncio. usage: python score_http_aio.py [HOST:PORT]"""

import asyncio
import sys

import numpy as np
from tritonclient.http.aio import InferenceServerClient, InferInput


def text(name: str, values: list[str]) -> InferInput:
    """One row of texts."""
    tensor = InferInput(name, [1, len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([values], np.object_))
    return tensor


async def main() -> None:
    """Ask about each thing in a call of its own."""
    items, labels = text("items", [" an apple", " a hammer"]), text("labels", [" Yes", " No"])
    async with InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000") as client:

        async def ask(thing: str) -> list[float]:
            query = text("query", [f"Is this a {thing}? It is"])
            answer = await client.infer("score", [query, items, labels], parameters={"apply_softmax": True})
            return [float(yes) for yes, _ in answer.as_numpy("scores")[0]]

        things = ["fruit", "tool", "planet"]
        for thing, (apple, hammer) in zip(things, await asyncio.gather(*map(ask, things)), strict=True):
            print(f"{thing}: apple {apple:.3f}, hammer {hammer:.3f}")


asyncio.run(main())
