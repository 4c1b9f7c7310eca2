"""Invalid specs, one per file in tests/invalid, each with its exact problems.

`make golden` writes the expectations again: read the difference before you commit it.
"""

import os
import sys
from pathlib import Path

import pytest

from launcher.errors import Problem, SpecError
from launcher.spec.loader import load
from launcher.spec.problems import render

INVALID = Path(__file__).parents[2] / "invalid"
CASES = sorted(INVALID.glob("*.yaml"))


def problems_of(case: Path) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        load(Path(case.name))
    return caught.value.problems


def text_of(problems: list[Problem]) -> str:
    """Return problems as users read them, without the path of the repository."""
    return render(problems).replace(str(INVALID), "<directory>") + "\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_spec_has_exactly_the_expected_problems_each_with_a_location_and_a_remedy(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(INVALID)
    problems = problems_of(case)
    assert text_of(problems) == case.with_suffix(".expected").read_text(encoding="utf-8")
    for problem in problems:
        assert problem.line >= 1
        assert problem.column >= 1
        assert problem.message
        assert problem.remedy


def test_there_are_enough_cases_and_each_has_a_file_of_problems() -> None:
    assert len(CASES) >= 60
    assert {case.stem for case in CASES} == {expected.stem for expected in INVALID.glob("*.expected")}


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    os.chdir(INVALID)
    for wrong in CASES:
        wrong.with_suffix(".expected").write_text(text_of(problems_of(wrong)), encoding="utf-8")
