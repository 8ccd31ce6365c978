"""Write example requests for perf_analyzer into ``data/``, in texts (score.json) and token ids.

`tokenizer` takes score.json, too. The files in the repository are written with the defaults. perf_analyzer sends
the entries in turn; no two share a query, since cached queries would make the server look faster.

usage: python -m perf.loadgen.request_data [--requests 20] [--query-tokens 60] [--items 8] [--item-tokens 4]
           [--seed 0]
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

# Ids that every vocabulary has. Which ones they are does not change a model's speed.
LOWEST_ID, HIGHEST_ID = 20, 399
LABEL_IDS = [7, 9]
WORDS = [
    "apple", "hammer", "river", "cloud", "violin", "bread", "garden", "engine", "pepper", "window", "banana",
]  # fmt: skip


def text_request(rng: random.Random, query_tokens: int, items: int, item_tokens: int) -> dict[str, Any]:
    """A request to `score`; a word is about a token."""
    notes = " ".join(rng.choices(WORDS, k=max(0, query_tokens - 20)))
    return {
        "query": [f"Notes: {notes}.\n\nDoes the following line name a fruit? Answer Yes or No.\nLine:"],
        "items": [" " + " ".join(rng.choices(WORDS, k=item_tokens)) for _ in range(items)],
        "labels": [" Yes", " No"],
    }


def id_request(rng: random.Random, query_tokens: int, items: int, item_tokens: int) -> dict[str, Any]:
    """A request to `scorer`: the query, then a delimiter and the tokens of each item, then a last delimiter."""
    filler = 0
    ids = [rng.randint(LOWEST_ID, HIGHEST_ID) for _ in range(query_tokens)]
    delimiters = [len(ids)]
    for _ in range(items):
        ids += [filler, *(rng.randint(LOWEST_ID, HIGHEST_ID) for _ in range(item_tokens))]
        delimiters.append(len(ids))
    return {"input_ids": [*ids, filler], "delimiter_indices": delimiters, "label_token_ids": LABEL_IDS}


def prompt_request(rng: random.Random, query_tokens: int, items: int, item_tokens: int) -> dict[str, Any]:
    """A request to `decode`: a prompt as long as a query."""
    return {"input_ids": [rng.randint(LOWEST_ID, HIGHEST_ID) for _ in range(query_tokens)]}


def with_shapes(request: dict[str, Any]) -> dict[str, Any]:
    """Add the shape of each tensor without the batch dimension; sizes differ between requests."""
    return {name: {"content": values, "shape": [len(values)]} for name, values in request.items()}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--requests", type=int, default=20, help="entries in each file (default: %(default)s)"
    )
    parser.add_argument(
        "--query-tokens", type=int, default=60, help="tokens of a query (default: %(default)s)"
    )
    parser.add_argument("--items", type=int, default=8, help="items of a request (default: %(default)s)")
    parser.add_argument("--item-tokens", type=int, default=4, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=Path(__file__).parents[1] / "data")
    options = parser.parse_args()
    for name, make in (("score", text_request), ("scorer", id_request), ("decode", prompt_request)):
        rng = random.Random(options.seed)
        sizes = options.query_tokens, options.items, options.item_tokens
        entries = [with_shapes(make(rng, *sizes)) for _ in range(options.requests)]
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        (options.directory / f"{name}.json").write_text(f'{{"data": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
