"""Questions about a state to token ids: what all have in common is the query, each question is an item."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hiscore.prompts.answer_labels import AnswerLabels, Kind, Labels
from hiscore.prompts.chat import PromptError, read_chat_template
from hiscore.prompts.shared_beginning import Prompts, common_length
from hiscore.prompts.token_limits import TokenLimits
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tracked_text import own

# Stands for a question that is put into a rendered template later. No caller can write it.
GAP = f"\ue000{secrets.token_hex(8)}\ue001"
ASKED: dict[Kind, str] = {
    "predicate": "Is it so?",
    "choice": "Which option fits best?",
    "score": "Which level fits best?",
}
"""Instructions of a question without any."""
ENDINGS: dict[tuple[Kind, bool], str] = {
    ("predicate", False): 'Answer only "Yes" or "No".',
    ("choice", False): "Answer only with the label of the best option.",
    ("choice", True): "Answer only with the text of the best option.",
    ("score", False): "Answer only with the number of the best level.",
    ("score", True): "Answer only with the text of the best level.",
}
"""By the kind of question, and whether options stand by their own texts."""


@dataclass(frozen=True)
class Message:
    role: str
    text: str


@dataclass(frozen=True)
class Option:
    text: str
    description: str = ""


@dataclass(frozen=True)
class Question:
    """A question about the state. A predicate's options are yes and no; a score's begin with the lowest.

    With `by_text`, the options of other kinds are answered by their own texts.
    """

    kind: Kind
    instructions: str
    options: Sequence[Option]
    by_text: bool = False

    @property
    def characters(self) -> int:
        return len(self.instructions) + sum(len(each.text) + len(each.description) for each in self.options)

    def rotated(self, by: int) -> "Question":
        return replace(self, options=[*self.options[by:], *self.options[:by]])


@dataclass(frozen=True)
class DecisionPrompts:
    """Prompts as the scorer takes them, with the labels that stand for each question's options."""

    prompts: Prompts
    labels: list[Labels]


class DecisionPrompter:
    """Makes the prompts of one checkpoint: its own chat without reasoning, or plain text if it has no template."""

    temperature = 1.0
    """Divides the logits of labels, before any calibration."""

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
        before, after = self._frame(state)
        return before + self._question(question) + after

    def ids(self, state: Sequence[Message], questions: Sequence[Question]) -> DecisionPrompts:
        before, after = self._frame(state)
        tails = [self._question(question) + after for question in questions]
        once, rows = self.tokenizer.encode_continued(before, tails, self._limits)
        if self._chat is None:
            once, rows = self._begun(once, rows)
        common = common_length(rows) if len(rows) > 1 else 0
        prompts = Prompts([*once, *rows[0][:common]], [row[common:] for row in rows])
        return DecisionPrompts(prompts, self._labels_of(questions))

    def characters(self, state: Sequence[Message], questions: Sequence[Question]) -> int:
        once = sum(len(message.text) for message in state)
        repeats = 1 if self.tokenizer.splits else len(questions)
        return once * repeats + sum(question.characters for question in questions)

    def _labels_of(self, questions: Sequence[Question]) -> list[Labels]:
        by_text = [question for question in questions if question.by_text]
        texts = dict.fromkeys(option.text.strip() for question in by_text for option in question.options)
        known = self.labels.of_texts([*texts]) if texts else {}
        found = []
        for question in questions:
            if not question.by_text:
                found.append(self.labels.of(question.kind, len(question.options)))
                continue
            own = [option.text.strip() for option in question.options]
            labels = Labels(own, [known[text] for text in own])
            if len(set(labels.ids)) < len(own):
                raise PromptError("two options of a question are the same tokens: give them other texts")
            found.append(labels)
        return found

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
        return self._parted(rendered)

    @staticmethod
    def _parted(rendered: str) -> tuple[str, str]:
        before, *after = rendered.split(GAP)
        if len(after) != 1:
            raise PromptError("the chat template does not write the user's last message as it is")
        return before, after[0]

    def _question(self, question: Question) -> str:
        lines = [question.instructions or ASKED[question.kind]]
        ending = ENDINGS[question.kind, question.by_text]
        if question.by_text:
            options = [": ".join(filter(None, (each.text, each.description))) for each in question.options]
            return "\n".join([*lines, *options, ending])
        labels = self.labels.of(question.kind, len(question.options)).texts
        for label, option in zip(labels, question.options, strict=True):
            # The label of a predicate's option is its text.
            texts = (
                [option.description] if question.kind == "predicate" else [option.text, option.description]
            )
            if described := " - ".join(filter(None, texts)):
                lines.append(f"{label}: {described}")
            elif question.kind != "predicate":
                lines.append(f"{label}:")
        return "\n".join([*lines, ending])


def _append(message: dict[str, str], text: str) -> None:
    message["content"] += "\n\n" * bool(message["content"] and text) + text
