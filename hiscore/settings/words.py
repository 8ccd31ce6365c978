"""Words that stand for a value of a setting: `auto` chooses by checkpoint and machine, `off` does without."""

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Word:
    """Part of a setting's annotation: a user who writes the word gets the value."""

    word: str
    value: Any

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def _read(self, given: Any) -> Any:
        return self.value if given == self.word else given


AUTO, OFF = Word("auto", None), Word("off", None)
AUTO_TEXT, OFF_TEXT = Word("auto", ""), Word("off", "")
AUTO_NUMBER, OFF_NUMBER = Word("auto", 0), Word("off", 0)


def words_of(field: FieldInfo) -> list[Word]:
    """Find the words of a setting; one that stands for another word is of the past."""
    words = [each for each in field.metadata if isinstance(each, Word)]
    return [each for each in words if not (isinstance(each.value, str) and each.value)]


def shown_default(field: FieldInfo) -> str:
    """Write a setting's default as a user would."""
    for each in words_of(field):
        if each.value == field.default:
            return each.word
    return {"True": "on", "False": "off"}.get(str(field.default), str(field.default))
