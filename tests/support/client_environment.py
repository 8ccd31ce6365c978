"""Scripts of tests/clients, run in the environment that has the clients of other servers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.prefix) / "clients" / "bin"
SCRIPTS = ROOT / "tests" / "clients"
# Importing one of the large packages takes ten seconds of a busy core.
TIMEOUT_S = 540
# They would look for prices, models and newer versions on the Internet, or report there.
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NO_PROXY": "*",
    "no_proxy": "*",
}


def run(
    command: list[str | Path], given: str = "", directory: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with that environment first on its PATH.

    Args:
        command: A program, of the environment if it has one of that name, and its arguments.
        given: Its standard input.
        directory: Where it runs.
        variables: Added to its environment.
    """
    assert (BIN / "python").is_file(), (
        f"{BIN.parent} is missing: `make {BIN.parent.relative_to(ROOT)}/.installed`"
    )
    clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.run(
        [BIN / command[0] if (BIN / command[0]).exists() else command[0], *command[1:]],
        input=given,
        cwd=directory,
        env={**clean, **QUIET, "PATH": f"{BIN}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def package_file(path: str) -> Path:
    found = list(BIN.parent.glob(f"lib/python3*/site-packages/{path}"))
    assert found, f"{path} is missing: `make {BIN.parent.relative_to(ROOT)}/.installed`"
    return found[0]


def ask(script: str, **given: Any) -> dict[str, Any]:
    done = run(["python", SCRIPTS / f"{script}.py"], json.dumps(given))
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
