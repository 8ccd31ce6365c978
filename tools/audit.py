"""``make audit``: known vulnerabilities of the installed packages, and a bill of materials of them.

usage: python tools/audit.py ENVIRONMENT SBOM

Runs in an environment that has pip-audit and cyclonedx-bom, and looks at another one. The exit code is 1 if a
package has a known vulnerability. Where the advisories cannot be had, for want of a network or of an index with
them, that is said, and is no failure unless AUDIT_STRICT=1: nothing was found out.
"""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

SCRIPTS = Path(sysconfig.get_path("scripts"))
SECONDS = 300


def main(environment: Path, sbom: Path) -> int:
    """Write the bill, then ask for advisories."""
    python = environment / "bin" / "python"
    subprocess.run(
        [SCRIPTS / "cyclonedx-py", "environment", python, "--of", "JSON", "-o", sbom],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    print(f"{len(json.loads(sbom.read_text())['components'])} packages in {sbom}")
    (packages,) = environment.glob("lib/python3*/site-packages")
    command = [SCRIPTS / "pip-audit", "--path", packages, "--format", "json", "--progress-spinner", "off"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    except subprocess.TimeoutExpired:
        found = ""
    text, code = verdict(found, strict=os.environ.get("AUDIT_STRICT") == "1")
    print(text)
    return code


def verdict(report: str, strict: bool) -> tuple[str, int]:
    """What pip-audit's JSON report says, and the exit code for it; an empty report is one that was not made."""
    try:
        packages = json.loads(report)["dependencies"]
    except ValueError:
        return "NOT AUDITED: the advisories could not be fetched", int(strict)
    checked = [package for package in packages if "skip_reason" not in package]
    lines = [
        f"{package['name']} {package['version']}: {known['id']}, fixed in {_versions(known['fix_versions'])}"
        for package in checked
        for known in package["vulns"]
    ]
    if lines:
        return "\n".join([*lines, f"{len(lines)} known vulnerabilities"]), 1
    missing = len(packages) - len(checked)
    if not checked or (strict and missing):
        return f"NOT AUDITED: the index has no advisories for {missing} of {len(packages)} packages", int(
            strict
        )
    rest = f"; {missing} are not on the index and were not checked" if missing else ""
    return f"no known vulnerability in {len(checked)} packages{rest}", 0


def _versions(versions: list[str]) -> str:
    return ", ".join(versions) or "none"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
