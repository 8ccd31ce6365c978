"""The default model's greedy decoding through tritonserver against transformers: every token is the right one.

Given the tokens before it, each generated token must be the one that transformers finds most likely, in one
forward over prompt and generation. So a near tie decided the other way does not spoil the tokens after it.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hiscore.launcher import Server
from hiscore_client import ScoreClient
from tests.server.conftest import StartServer
from tests.server.wire import score_tokens
from tests.support.comparison import check, truth_of
from tests.support.decode_truth import DecodeTruth, near_best
from tests.support.strategies import Tokens
from tests.support.tiny_models import make

pytestmark = pytest.mark.server

TOKENS = 64
# float32 sums in another order move a logit by about 1e-5; what is nearer than this may come out either way.
NEAR_TIE = 1e-4
PROMPTS = [
    "The capital of France is", "def fibonacci(n):", "Once upon a time there was a", "Water boils at",
    "The three primary colours are", "To make a cup of tea, first", "1, 1, 2, 3, 5, 8,", "Dear Sir or Madam,",
    "SELECT name FROM users WHERE", "The mitochondria is", "In 1969, humans first", "Ingredients:\n- 200 g flour",
    "Q: What is the largest planet?\nA:", "The opposite of hot is", "import numpy as np\n", "Der Himmel ist",
    "Photosynthesis converts", "A haiku about rain:\n", "My favourite book is", "x^2 - 4 = 0 has the solutions",
]  # fmt: skip


@pytest.fixture(scope="module")
def decode(start_server: StartServer, smollm: Path) -> Server:
    return start_server(smollm, models="decode", selector="dense", max_streams=20)


def shortfall(model: torch.nn.Module, prompt: list[int], generated: list[int]) -> np.ndarray:
    """How far each generated token's logit is below the largest at its position: float32 [tokens]."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + generated])).logits[0, len(prompt) - 1 : -1]
    found = logits.amax(1) - logits.gather(1, torch.tensor(generated)[:, None])[:, 0]
    return found.numpy()


def test_every_token_is_the_likeliest_after_those_before_it(decode: Server, smollm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    model = AutoModelForCausalLM.from_pretrained(smollm, dtype=torch.float32).eval()

    def generate(prompt: str) -> tuple[list[int], str]:
        with ScoreClient(decode.grpc_url) as client:
            chunks = list(client.generate(prompt, max_tokens=TOKENS, ignore_eos=True))
        return [token for chunk in chunks for token in chunk.token_ids], "".join(c.text for c in chunks)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        generations = list(pool.map(generate, PROMPTS))
    worst = 0.0
    for prompt, (ids, text) in zip(PROMPTS, generations, strict=True):
        assert len(ids) == TOKENS
        assert text == tokenizer.decode(ids, skip_special_tokens=True)
        found = shortfall(model, tokenizer(prompt).input_ids, ids)
        worst = max(worst, float(found.max()))
        # The control: another token at the end.
        wrong = [*ids[:-1], (ids[-1] + 1) % 49_152]
        assert shortfall(model, tokenizer(prompt).input_ids, wrong)[-1] > 10 * NEAR_TIE
    assert worst < NEAR_TIE


def test_a_chat_prompt_ends_its_turn_by_itself(decode: Server, smollm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=True)["input_ids"]
    with ScoreClient(decode.grpc_url) as client:
        chunks = list(client.generate(ids, max_tokens=200))
    assert chunks[-1].finish_reason == "stop"
    assert "Paris" in "".join(chunk.text for chunk in chunks)


@pytest.mark.exhaustive
def test_states_are_decoded_found_again_and_scored_beside(
    start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Gated delta nets, whose prompts are found as far as a state was kept."""
    checkpoint = make("qwen3-hybrid", tmp_path_factory.mktemp("hybrid"))
    server, truth = start_server(checkpoint, max_streams=4), DecodeTruth(checkpoint, torch.float32)
    beginning = np.arange(3, 153, dtype=np.int32)
    cached = []
    with ScoreClient(server.grpc_url) as client:
        for end in (0, 1, 0):
            ids = [*beginning.tolist(), 200 + end]
            chunks = list(client.generate(ids, max_tokens=16, ignore_eos=True))
            generated = [token for chunk in chunks for token in chunk.token_ids]
            assert near_best(truth.follow(ids, generated[:-1]), generated).max() < NEAR_TIE
            cached.append(chunks[-1].cached_tokens)
    assert cached == [0, 128, 128]
    call, labels = Tokens(beginning.tolist(), [[5, 6, 7], [8] * 70]), [5, 77, 401]
    scores = score_tokens(server, call, labels, apply_softmax=True).scores
    check(scores, truth_of(checkpoint).scores(call.query, call.items, labels, apply_softmax=True))
