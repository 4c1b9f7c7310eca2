"""TFJobs, one per file: `accepted` has the spec and the report that each becomes, `refused` the problems of each.

`make golden` writes the expectations again: read the difference before you commit it.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcher.cli.main import run
from launcher.spec.loader import load
from launcher.tfjob import container, job_fields, pod, replica_specs
from tests.launcher.tfjob.pods import check

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ACCEPTED = sorted(HERE.glob("accepted/*.yaml"))
REFUSED = sorted(HERE.glob("refused/*.yaml"))


def import_case(case: Path) -> tuple[int, str]:
    """Return the exit code of an import, and its output: the spec and the report, or the problems."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["import", f"{case.parent.name}/{case.name}"])
    spec = re.sub(r"\$schema=\S+", "$schema=...", out.getvalue())
    return code, spec + ("\n" if spec else "") + err.getvalue()


@pytest.fixture(autouse=True)
def working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


@pytest.mark.parametrize("case", ACCEPTED + REFUSED, ids=lambda case: case.stem)
def test_an_import_has_exactly_the_expected_output(case: Path) -> None:
    code, output = import_case(case)
    assert code == (2 if case in REFUSED else 0), output
    assert output == case.with_suffix(".expected").read_text(encoding="utf-8")
    if case in REFUSED:  # with a remedy for each problem, and without a spec
        *problems, last = output.splitlines()
        assert re.fullmatch(r"error: \d+ problems? in the TFJob", last)
        starts = [line for line in problems if line.startswith(f"{case.parent.name}/{case.name}")]
        assert len([line for line in problems if line.startswith("    to fix: ")]) == len(starts) > 0


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.stem)
def test_the_pods_of_the_spec_are_those_of_the_tfjob(case: Path, tmp_path: Path) -> None:
    assert run(["import", str(case), "-o", str(tmp_path / "cluster.yaml"), "--json"]) == 0
    check(case.read_bytes(), load(tmp_path / "cluster.yaml"))


def test_each_case_has_a_file_of_output() -> None:
    cases = {path.with_suffix(".yaml") for path in HERE.glob("*/*.expected")}
    assert cases == {*ACCEPTED, *REFUSED}


TABLES: dict[str, Iterable[str]] = {
    "metadata": job_fields.METADATA,
    "spec": job_fields.SPEC,
    "schedulingPolicy": job_fields.SCHEDULING,
    "replica": replica_specs.REPLICA,
    "template.metadata": pod.METADATA,
    "template.spec": pod.POD,
    "container": container.CONTAINER,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_field_is_in_the_guide(name: str) -> None:
    guide = (ROOT / "docs" / "from-tfjob.md").read_text(encoding="utf-8")
    assert [key for key in TABLES[name] if f"`{key}`" not in guide] == []


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    os.chdir(HERE)
    for path in ACCEPTED + REFUSED:
        path.with_suffix(".expected").write_text(import_case(path)[1], encoding="utf-8")
