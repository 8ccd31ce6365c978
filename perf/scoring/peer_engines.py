"""Programs that can score the same calls: hiscore itself, transformers, vLLM and SGLang."""

import asyncio
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hiscore.arrays import Float32
from hiscore.scoring.pending_scores import Scores
from hiscore.scoring.scorer import Scorer
from perf.loadgen.scorer_calls import Ids

BUDGET = 16_384
# Share of the device's memory that an engine may take; several run side by side.
MEMORY = 0.2


class Unavailable(Exception):
    """A peer cannot run here; the message says why."""


class Peer(Protocol):
    """A program that scores calls: float32 [items of all calls, labels], softmax over the labels."""

    def scores(self, calls: Sequence[Ids]) -> Float32: ...

    def close(self) -> None: ...


class Ours:
    """The scorer in this process, without a prefix cache."""

    def __init__(self, checkpoint: Path, device: str) -> None:
        self._scorer = Scorer(checkpoint, device, max_batch_tokens=BUDGET, query_cache_bytes=0)

    def scores(self, calls: Sequence[Ids]) -> Float32:
        answers, _ = self._scorer.score([call.request() for call in calls])
        found = [answer for answer in answers if isinstance(answer, Scores)]
        if len(found) < len(answers):
            raise RuntimeError("the scorer refused a call")
        return np.concatenate([answer.scores for answer in found])

    def close(self) -> None:
        del self._scorer


class Transformers:
    """Transformers with SDPA over one batch of prompts, the head computed at the last token only.

    All prompts are equally long, so nothing is padded and no mask is needed: its best case.
    """

    def __init__(self, checkpoint: Path, device: str, compiled: bool = False) -> None:
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._device = torch.device(device)
        model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation="sdpa")
        self._model = model.to(device).eval()
        self._compiled = compiled
        self._forward: Callable[..., Any] = self._last_logits
        if compiled:
            # On a GPU this mode also captures CUDA graphs.
            mode = "reduce-overhead" if device == "cuda" else None
            self._forward = torch.compile(self._last_logits, mode=mode, dynamic=False)

    def _last_logits(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model(input_ids=ids, logits_to_keep=1, use_cache=False).logits
        return logits[:, 0]

    @torch.inference_mode()
    def scores(self, calls: Sequence[Ids]) -> Float32:
        prompts = [[*call.query, *item] for call in calls for item in call.items]
        logits = self._forward(torch.tensor(prompts, device=self._device))
        labels = torch.tensor([call.labels for call in calls for _ in call.items], device=self._device)
        found: Float32 = logits.gather(1, labels).float().softmax(dim=1).cpu().numpy()
        return found

    def close(self) -> None:
        del self._model, self._forward
        if self._compiled:
            torch.compiler.reset()


class Vllm:
    """vLLM offline: a prompt per item and one generated token, with the labels' log-probabilities.

    As its own scoring endpoint does it. The prefix cache is on, and batches may hold as many tokens as ours.
    """

    def __init__(self, checkpoint: Path, device: str) -> None:
        if device != "cuda":
            raise Unavailable("vLLM is compared on a CUDA device only")
        _need("vllm")
        from vllm import LLM, SamplingParams

        if "logprob_token_ids" not in inspect.signature(SamplingParams).parameters:
            raise Unavailable("this vLLM has no logprob_token_ids; 0.25.1 has")
        self._params = SamplingParams
        self._llm = LLM(
            model=str(checkpoint), dtype="bfloat16", skip_tokenizer_init=True, gpu_memory_utilization=MEMORY,
            enable_prefix_caching=True, max_num_batched_tokens=BUDGET, max_num_seqs=1_024,
        )  # fmt: skip

    def scores(self, calls: Sequence[Ids]) -> Float32:
        prompts, params, labels = [], [], []
        for call in calls:
            requests = self._params(
                max_tokens=1, temperature=0.0, detokenize=False, logprob_token_ids=list(call.labels)
            )
            prompts += [{"prompt_token_ids": [*call.query, *item]} for item in call.items]
            params += [requests] * len(call.items)
            labels += [call.labels] * len(call.items)
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        rows = [
            [output.outputs[0].logprobs[0][label].logprob for label in of]
            for output, of in zip(outputs, labels, strict=True)
        ]
        found: Float32 = torch.tensor(rows).softmax(dim=1).numpy()
        return found

    def close(self) -> None:
        del self._llm


class Sglang:
    """SGLang's own scoring API, offline, with all calls of a batch at once.

    With `multi_item`, all items of a call form one sequence, which turns off its CUDA graphs and prefix cache.
    """

    def __init__(self, checkpoint: Path, device: str, multi_item: bool = False) -> None:
        if device != "cuda":
            raise Unavailable("SGLang is compared on a CUDA device only")
        _need("sglang")
        import sglang

        more = {"enable_mis": True, "attention_backend": "flashinfer"} if multi_item else {}
        self._engine = sglang.Engine(
            model_path=str(checkpoint), dtype="bfloat16", skip_tokenizer_init=True, mem_fraction_static=MEMORY,
            **more,
        )  # fmt: skip

    def scores(self, calls: Sequence[Ids]) -> Float32:
        async def together() -> list[Any]:
            requests = (
                self._engine.async_score(
                    query=call.query, items=call.items, label_token_ids=list(call.labels), apply_softmax=True
                )
                for call in calls
            )
            return list(await asyncio.gather(*requests))

        # The engine's processes answer on its own event loop.
        answers = self._engine.loop.run_until_complete(together())
        # Newer versions answer with an object, older ones with the list itself.
        return np.concatenate([np.array(getattr(a, "scores", a), np.float32) for a in answers])

    def close(self) -> None:
        self._engine.shutdown()


PEERS: dict[str, Callable[[Path, str], Peer]] = {
    "hiscore": Ours,
    "transformers, SDPA": Transformers,
    "transformers, compiled": lambda checkpoint, device: Transformers(checkpoint, device, compiled=True),
    "vLLM": Vllm,
    "SGLang": Sglang,
    "SGLang, multi-item": lambda checkpoint, device: Sglang(checkpoint, device, multi_item=True),
}


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise Unavailable(f"the package {package} is not installed")
