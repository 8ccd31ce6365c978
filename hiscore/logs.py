"""Log lines of the launcher and the models: text for people, or JSON for programs.

``log.info("...", extra={"fields": {...}})`` adds fields to a line.
"""

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Literal

LogFormat = Literal["text", "json"]


class TextFormatter(logging.Formatter):
    """The message, then its fields as ``name='value'``, quoted so that no value starts a line; times are UTC."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        when = datetime.fromtimestamp(record.created, timezone.utc)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = _fields(record).items()
        return " ".join([super().formatMessage(record), *(f"{name}={value!r}" for name, value in fields)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, fields (`always` first), and any traceback."""

    def __init__(self, always: Mapping[str, object]) -> None:
        super().__init__()
        self._always = dict(always)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(log_format: LogFormat, text: str, **always: object) -> None:
    """Log to standard error, from INFO on, in `logging`'s format `text` or as JSON with the fields `always`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(always) if log_format == "json" else TextFormatter(text))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def configure_model(log_format: LogFormat, model: str) -> None:
    """`configure` for a model's process."""
    configure(log_format, "%(asctime)s hiscore %(levelname)s %(name)s: %(message)s", model=model)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields
