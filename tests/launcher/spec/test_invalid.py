"""Invalid specs, one per file in tests/invalid, each with its exact problems.

`make golden` writes the expectations again: read the difference before you commit it.
"""

import os
import sys
from pathlib import Path

import pytest

from launcher.errors import SpecError
from launcher.spec.loader import load
from launcher.spec.problems import render

INVALID = Path(__file__).parents[2] / "invalid"
CASES = sorted(INVALID.glob("*.yaml"))


def problems_of(case: Path) -> str:
    """Return the problems of a spec as users read them, without the path of the repository."""
    with pytest.raises(SpecError) as caught:
        load(Path(case.name))
    return render(caught.value.problems).replace(str(INVALID), "<directory>") + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_spec_has_exactly_the_expected_problems(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(INVALID)
    assert problems_of(case) == case.with_suffix(".expected").read_text(encoding="utf-8")


def test_there_are_enough_cases_and_each_has_a_file_of_problems() -> None:
    assert len(CASES) >= 60
    assert {case.stem for case in CASES} == {expected.stem for expected in INVALID.glob("*.expected")}


def test_each_problem_has_a_location_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(INVALID)
    for case in CASES:
        with pytest.raises(SpecError) as caught:
            load(Path(case.name))
        for problem in caught.value.problems:
            assert problem.line >= 1, case.name
            assert problem.column >= 1, case.name
            assert problem.message, case.name
            assert problem.remedy, case.name


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    os.chdir(INVALID)
    for wrong in CASES:
        wrong.with_suffix(".expected").write_text(problems_of(wrong), encoding="utf-8")
