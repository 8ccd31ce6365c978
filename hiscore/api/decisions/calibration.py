"""The file of CALIBRATION, which `hiscore calibrate` writes: a temperature for each type of question."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

Temperatures: TypeAlias = Mapping[str, float]
"""By the type of question; those that are missing are 1."""


class CalibrationFile(msgspec.Struct):
    """The part of the file that is read; the rest is for people."""

    temperatures: dict[Literal["predicate", "choice", "score"], Annotated[float, Meta(gt=0)]]


def read_calibration(path: Path | None) -> Temperatures:
    """Read the temperatures of a file, if there is one, or raise ValueError: the file holds no temperatures."""
    if path is None:
        return {}
    try:
        read = msgspec.json.decode(path.read_bytes(), type=CalibrationFile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"CALIBRATION '{path}' is no calibration: {error}") from None
    return {str(kind): temperature for kind, temperature in read.temperatures.items()}
