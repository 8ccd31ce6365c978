from pathlib import Path

from perf.machine.facts import shown


def test_a_result_names_no_directory_of_the_machine(tmp_path: Path) -> None:
    asked = ["python", "-m", "perf.scoring.serving", "--out", str(tmp_path), "--rates", "1,2", "a/b"]
    assert shown(asked) == f"python -m perf.scoring.serving --out {tmp_path.name} --rates 1,2 a/b"
