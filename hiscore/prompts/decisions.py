"""Questions about a state to token ids: what all have in common is the query, each question is an item."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hiscore.prompts.answer_labels import AnswerLabels, Kind
from hiscore.prompts.chat import PromptError, read_chat_template
from hiscore.prompts.shared_beginning import Prompts, common_length
from hiscore.prompts.token_limits import TokenLimits
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tracked_text import own

# Stands for a question that is put into a rendered template later. No caller can write it.
GAP = f"\ue000{secrets.token_hex(8)}\ue001"
ENDINGS: dict[Kind, str] = {
    "predicate": 'Answer only "Yes" or "No".',
    "choice": "Answer only with the label of the best option.",
    "score": "Answer only with the number of the best level.",
}


@dataclass(frozen=True)
class Message:
    """One message of a state."""

    role: str
    text: str


@dataclass(frozen=True)
class Option:
    """A possible answer of a question, and a description of when it applies."""

    text: str
    description: str = ""


@dataclass(frozen=True)
class Question:
    """A question about the state. A predicate's options are yes and no; a score's begin with the lowest."""

    kind: Kind
    instructions: str
    options: Sequence[Option]

    @property
    def characters(self) -> int:
        return len(self.instructions) + sum(len(each.text) + len(each.description) for each in self.options)

    def rotated(self, by: int) -> "Question":
        """Rotate the options, so that the one at `by` comes first."""
        return Question(self.kind, self.instructions, [*self.options[by:], *self.options[:by]])


@dataclass(frozen=True)
class DecisionPrompts:
    """Prompts as the scorer takes them, with the tokens that stand for each question's options."""

    prompts: Prompts
    label_ids: list[Sequence[int]]


class DecisionPrompter:
    """Makes the prompts of one checkpoint: its own chat without reasoning, or plain text if it has no template."""

    def __init__(self, checkpoint: Path, limits: TokenLimits) -> None:
        self._limits = limits
        self._chat = read_chat_template(checkpoint)
        self.tokenizer = PromptTokenizer(checkpoint, [self._chat.source] if self._chat else [])
        self._labels: AnswerLabels | None = None

    @property
    def labels(self) -> AnswerLabels:
        """Labels of the checkpoint, found at first use; raises `PromptError` if its template takes no question."""
        if self._labels is None:
            before, after = self._frame([Message("user", "a")])
            prompt = own("") + before + "b" + after
            self.tokenizer.check_own(prompt)
            self._labels = AnswerLabels(self.tokenizer, prompt)
        return self._labels

    def text(self, state: Sequence[Message], question: Question) -> str:
        """Render the whole prompt of one question."""
        before, after = self._frame(state)
        return before + self._question(question) + after

    def ids(self, state: Sequence[Message], questions: Sequence[Question]) -> DecisionPrompts:
        """Encode the prompts of all questions about one state.

        Raises:
            PromptError: The chat template refuses the state, or there are not enough labels.
            CannotEncode: A text would become a special token, or the library gives up on one.
            TooMuchText: The text is too much to encode, or over the limits.
        """
        before, after = self._frame(state)
        tails = [self._question(question) + after for question in questions]
        once, rows = self.tokenizer.encode_continued(before, tails, self._limits)
        if self._chat is None:
            once, rows = self._begun(once, rows)
        common = common_length(rows) if len(rows) > 1 else 0
        prompts = Prompts([*once, *rows[0][:common]], [row[common:] for row in rows])
        labels = [self.labels.of(question.kind, len(question.options)).ids for question in questions]
        return DecisionPrompts(prompts, labels)

    def characters(self, state: Sequence[Message], questions: Sequence[Question]) -> int:
        """Estimate the characters that `ids` encodes."""
        once = sum(len(message.text) for message in state)
        repeats = 1 if self.tokenizer.splits else len(questions)
        return once * repeats + sum(question.characters for question in questions)

    def _begun(self, once: list[int], rows: list[list[int]]) -> tuple[list[int], list[list[int]]]:
        """Add the special tokens that a chat template would have written."""
        beginning = self.tokenizer.beginning
        return ([*beginning, *once], rows) if once else ([], [[*beginning, *row] for row in rows])

    def _frame(self, state: Sequence[Message]) -> tuple[str, str]:
        """Render the texts before and behind a question. The question ends a message of the user, or is one."""
        messages: list[dict[str, str]] = []
        for message in [*state, Message("user", "")]:
            if not messages or messages[-1]["role"] != message.role:
                messages.append({"role": own(message.role), "content": ""})
            # Many templates refuse two messages of one role in a row.
            _append(messages[-1], message.text)
        _append(messages[-1], f"Question: {GAP}")
        if self._chat is None:
            texts = [
                each["content"] if each["role"] == "user" else f"{each['role']}: {each['content']}"
                for each in messages
            ]
            rendered = "\n\n".join(texts) + "\nAnswer:"
        else:
            rendered = self._chat.render(messages)
        before, *after = rendered.split(GAP)
        if len(after) != 1:
            raise PromptError("the chat template does not write the user's last message as it is")
        return before, after[0]

    def _question(self, question: Question) -> str:
        labels = self.labels.of(question.kind, len(question.options)).texts
        lines = [question.instructions]
        for label, option in zip(labels, question.options, strict=True):
            # The label of a predicate's option is its text.
            texts = (
                [option.description] if question.kind == "predicate" else [option.text, option.description]
            )
            if described := " - ".join(filter(None, texts)):
                lines.append(f"{label}: {described}")
            elif question.kind != "predicate":
                lines.append(f"{label}:")
        return "\n".join([*lines, ENDINGS[question.kind]])


def _append(message: dict[str, str], text: str) -> None:
    message["content"] += "\n\n" * bool(message["content"] and text) + text
