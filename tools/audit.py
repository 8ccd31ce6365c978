"""``make audit``: known vulnerabilities of the installed packages, and a bill of materials of them.

usage: python tools/audit.py ENVIRONMENT SBOM

Runs in an environment that has pip-audit and cyclonedx-bom, and looks at another one. The exit code is 1 if a
package has a known vulnerability. Packages whose advisories cannot be had, for want of a network or of an index
with them, are named, and are no failure unless AUDIT_STRICT=1: nothing was found out.
"""

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

SCRIPTS = Path(sysconfig.get_path("scripts"))
SECONDS = 300
NEVER_ASKED = (
    "Not asked about at all: tritonserver, Python, the system's libraries, "
    "and the environments of audit's own tools and of the tests' clients."
)


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        report, said = done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        report, said = "", f"no answer within {SECONDS} s"
    text, code = verdict(report, said, strict=os.environ.get("AUDIT_STRICT") == "1")
    print(text, NEVER_ASKED, sep="\n")
    return code


def verdict(report: str, said: str, strict: bool) -> tuple[str, int]:
    """Turn pip-audit's JSON report, empty if it was not made, and its log into a text and an exit code."""
    try:
        packages = json.loads(report)["dependencies"]
    except ValueError:
        why = said.strip().rpartition("\n")[2] or "no reason given"
        return f"NOT AUDITED: the advisories of no package could be fetched: {why}", int(strict)
    checked = [package for package in packages if "skip_reason" not in package]
    lines = [
        f"{package['name']} {package['version']}: {known['id']}, fixed in {_versions(known['fix_versions'])}"
        for package in checked
        for known in package["vulns"]
    ]
    failed = bool(lines)
    if checked:
        lines.append(f"{len(lines) or 'no'} known vulnerabilities in {len(checked)} packages")
    missing = [package["name"] for package in packages if "skip_reason" in package]
    if missing:
        lines.append(
            f"NOT AUDITED: the index has no advisories for {len(missing)} of {len(packages)} packages:"
        )
        lines.append(textwrap.fill(", ".join(missing), 110, break_on_hyphens=False))
    return "\n".join(lines), int(failed or (strict and bool(missing)))


def _versions(versions: list[str]) -> str:
    return ", ".join(versions) or "none"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
