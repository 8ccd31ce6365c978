"""``/tokenize`` and ``/detokenize`` in vLLM's bodies, and the tokens of the prompts of ``/v1/completions``."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from hiscore.api.chat.messages import ChatMessage, prompt_of
from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import bad_request
from hiscore.api.wire import SOME, ModelCall, Request, TokenId, exactly_one
from hiscore.prompts.conversation import Conversations
from hiscore.prompts.token_limits import TokenLimits, TooMuchText
from hiscore.tokenization.file import read_backend
from hiscore.tokenization.panics import Panic, panics_raised
from hiscore.tokenization.token_length import max_bytes_per_token


class TokenizeRequest(Request, kw_only=True):
    """A text, or a conversation, which becomes a prompt by the checkpoint's chat template."""

    prompt: str | None = None
    messages: Annotated[list[ChatMessage], SOME] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: Literal[False] = False
    chat_template_kwargs: dict[str, Any] | None = None


class Tokenized(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType | None = UNSET


class DetokenizeRequest(Request, kw_only=True):
    tokens: list[TokenId]


class Detokenized(msgspec.Struct):
    prompt: str


class PromptCoder:
    """Turns prompts into token ids as `decode` does, and back."""

    def __init__(self, checkpoint: Path, limits: TokenLimits) -> None:
        self.limits, self._backend = limits, read_backend(checkpoint)
        self._bytes_per_token = max_bytes_per_token(self._backend)

    async def encode(self, prompts: Sequence[str | Sequence[int]], special: bool) -> list[list[int]]:
        """Encode those that are texts, with the tokenizer's special tokens if `special`."""
        texts = [each for each in prompts if isinstance(each, str)]
        encoded = iter(await off_loop(partial(self._encode, texts, special), sum(map(len, texts))))
        return [next(encoded) if isinstance(each, str) else list(each) for each in prompts]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        with panics_raised():
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special))

    def name(self, token: int) -> str:
        """A token as the vocabulary writes it; empty for an id without one."""
        return self._backend.id_to_token(token) or ""

    def _encode(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        try:
            self.limits.check_bytes("", texts, self._bytes_per_token)
            with panics_raised():
                return [self._backend.encode(each, add_special_tokens=special).ids for each in texts]
        except TooMuchText as error:
            raise bad_request(str(error), "prompt", "context_length_exceeded") from None
        except Panic:
            raise bad_request("the tokenizer cannot encode 'prompt'", "prompt") from None


class Tokenizer:
    """Serves the routes; without `conversations` there is no chat template."""

    def __init__(self, coder: PromptCoder, conversations: Conversations | None) -> None:
        self._coder, self._conversations = coder, conversations

    async def tokenize(self, request: TokenizeRequest, call: ModelCall) -> Tokenized:
        exactly_one({"prompt": request.prompt, "messages": request.messages})
        if request.prompt is not None:
            (ids,) = await self._coder.encode([request.prompt], request.add_special_tokens is not False)
        else:
            ids = await self._of_conversation(request)
        made = Tokenized(count=len(ids), max_model_len=self._coder.limits.context, tokens=ids)
        if request.return_token_strs:
            made.token_strs = [self._coder.name(each) for each in ids]
        return made

    async def detokenize(self, request: DetokenizeRequest, call: ModelCall) -> Detokenized:
        decode = partial(self._coder.decode, request.tokens, skip_special=False)
        return Detokenized(await off_loop(decode, len(request.tokens)))

    async def _of_conversation(self, request: TokenizeRequest) -> list[int]:
        chat = self._conversations
        if chat is None:
            raise bad_request("this model has no chat template: send 'prompt'", "messages")
        if request.add_special_tokens:
            raise bad_request(
                "'add_special_tokens' needs 'prompt': a chat template writes its own", "messages"
            )
        variables = {**(request.chat_template_kwargs or {})}
        if not request.add_generation_prompt:
            variables["add_generation_prompt"] = False
        return (await prompt_of(chat, request.messages or [], None, variables)).ids
