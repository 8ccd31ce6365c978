"""Cores by their numbers, as the setting SCORER_CORES names them."""

from pydantic import Field

from hiscore.settings.groups import Settings


class OwnCores(Settings):
    """Which cores are for one thread alone."""

    section = "Model and device"

    scorer_cores: str = Field(
        default="",
        pattern=r"^(\d+(,\d+)*)?$",
        description="numbers of cores, one for each instance of `scorer` on a GPU, such as `14,15`: the thread "
        "that takes and computes its calls has that core, and the rest of the server keeps off it ([what for]"
        "(operations.md#a-core-of-its-own))",
    )

    @property
    def own_cores(self) -> list[int]:
        """The numbers."""
        return [int(number) for number in self.scorer_cores.split(",") if number]
