"""Build a release into dist/: both wheels, their SHA-256, what changed, and what the environment holds (SBOM).

usage: python tools/dist.py [DIRECTORY]; IMAGE=name@sha256:... names the image that was pushed for this release
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (ROOT, ROOT / "client")
SBOM = ROOT / "sbom.cdx.json"
DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def build_wheels(directory: Path) -> list[Path]:
    """Build the wheels of a copy of what git holds, so that nothing else of a checkout gets into them."""
    with tempfile.TemporaryDirectory() as clean:
        packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", clean], input=packed.stdout, check=True)
        sources = [Path(clean, project.relative_to(ROOT)) for project in PROJECTS]
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory]
        subprocess.run([*command, *sources], check=True)
    return sorted(directory.glob("*.whl"))


def newest_changes(changelog: str) -> str:
    """Take the first version's section of the changelog."""
    return re.split(r"^## ", changelog, flags=re.MULTILINE)[1]


def main() -> int:
    """Build. The exit code is 2 if IMAGE is no name with a digest, or git holds changes that are not committed."""
    image = os.environ.get("IMAGE", "")
    if image and not DIGEST.fullmatch(image):
        print(f"error: IMAGE is {image}: name it by its digest, name@sha256:...", file=sys.stderr)
        return 2
    if subprocess.check_output(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT):
        print("error: there are changes that are not committed", file=sys.stderr)
        return 2
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    build_wheels(directory)
    if SBOM.exists():
        shutil.copy(SBOM, directory)
    notes = newest_changes((ROOT / "CHANGELOG.md").read_text())
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    of_image = f"Image: {image}" if image else "There is no image of this release."
    (directory / "RELEASE.md").write_text(f"# hiscore {notes}\nCommit {commit}. {of_image}\n")
    sums = [
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n"
        for each in sorted(directory.iterdir())
    ]
    (directory / "SHA256SUMS").write_text("".join(sums))
    print(f"{directory}: {', '.join(sorted(each.name for each in directory.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
