"""The launcher's own arguments, and make's variables: everything else is a setting in the environment."""

import argparse
import difflib
import os
from collections.abc import Iterable, Sequence

import hiscore
from hiscore.launcher.errors import BadSetting
from hiscore.launcher.versions import build_info
from hiscore.settings import ServeSettings
from hiscore.settings.words import shown_default

# Variables that make, the launcher or the libraries below it read, apart from settings.
OTHERS = {
    "PYTHON", "VENV", "BIN", "LOCK", "CHECK", "TRITONSERVER", "TRITON_BACKENDS", "TRITON_LIBS", "TMPDIR",
    "HISCORE_CACHE", "HISCORE_MODEL_REPOSITORY",
    "HISCORE_TLS", "HISCORE_TLS_CA", "HISCORE_TLS_CERT", "HISCORE_TLS_KEY", "HISCORE_TLS_NAME",
}  # fmt: skip
PREFIXES = ("CUDA_", "GOMP_", "HF_", "LD_", "MKL_", "NVIDIA_", "OMP_", "OTEL_", "PIP_", "TORCH", "TRITON_")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line: ``check``, and ``make_variables``, those given to make."""
    parser = argparse.ArgumentParser(
        prog="hiscore serve",
        description="Serve a checkpoint with tritonserver, in the foreground, until a SIGTERM or a SIGINT.",
        epilog="Settings are environment variables (docs/settings.md says more):\n\n" + settings_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check", action="store_true", help="check settings, machine and checkpoint, start nothing, and exit"
    )
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument(
        "settings", nargs="*", metavar="NAME=VALUE", help="settings, before the environment's"
    )
    parser.add_argument("--make-variables", default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def take_settings(given: Sequence[str]) -> None:
    """Put settings of the command line, as NAME=VALUE, into the environment.

    Raises:
        BadSetting: One has no ``=``, or is no setting.
    """
    pairs = dict(each.partition("=")[::2] for each in given)
    for each in given:
        if "=" not in each:
            raise BadSetting(f"{each} is not NAME=VALUE")
    check_variables(pairs)
    os.environ.update(pairs)


def version() -> str:
    others = {name: value for name, value in build_info().items() if name != "version"}
    return f"hiscore {hiscore.__version__} ({', '.join(f'{name} {value}' for name, value in others.items())})"


def settings_help() -> str:
    """A line for each setting: variable, default."""
    fields = ServeSettings.model_fields.items()
    return "\n".join(f"  {name.upper()} (default: {shown_default(field)})" for name, field in fields)


def check_variables(given: Iterable[str]) -> None:
    """Refuse variables given to make that nothing reads, such as misspelt settings.

    Raises:
        BadSetting: There is one; the message suggests what may have been meant.
    """
    settings = [name.upper() for name in ServeSettings.model_fields]
    for name in given:
        if name not in settings and name not in OTHERS and not name.startswith(PREFIXES):
            near = [
                best
                for spelling in (name.upper().removeprefix("HISCORE_"), name.upper())
                for best in difflib.get_close_matches(spelling, [*settings, *OTHERS], n=1, cutoff=0.6)
            ]
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists all settings"
            raise BadSetting(f"{name} is not a setting: {hint}")
