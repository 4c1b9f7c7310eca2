"""A spec's identity is the same wherever its project is."""

from pathlib import Path

import pytest

from launcher.cli.planning import planned


def digest(project: Path, code: str, data: str) -> str:
    project.mkdir(parents=True, exist_ok=True)
    for directory in (code, data):
        if "/" in directory:
            (project / directory).mkdir(parents=True, exist_ok=True)
    file = project / "toy.yaml"
    file.write_text(f"version: 1\nname: toy\ncode: {code}\ntrain: {{workload: mnist, data: {data}, steps: 1}}\n")
    return planned(file, (), "local", project / "runs")[1].spec_digest


@pytest.mark.parametrize("data", ["./data", "../data", "{there}/data", "synthetic"])
def test_a_spec_is_the_same_wherever_its_project_is(data: str, tmp_path: Path) -> None:
    first, *others = [
        digest(tmp_path / where / "project", "../src", data.format(there=tmp_path)) for where in ("one", "other", "further/below")
    ]
    assert others == [first, first]


@pytest.mark.parametrize("code, data", [("./src", "../data"), ("../src", "./data"), ("../src", "{there}/data")])
def test_other_code_or_data_is_another_spec(code: str, data: str, tmp_path: Path) -> None:
    project = tmp_path / "one" / "project"
    assert digest(project, code, data.format(there=tmp_path)) != digest(project, "../src", "../data")


def test_python_code_is_a_part_of_what_identifies_a_spec_and_what_a_run_leaves_beside_it_is_not(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    program = source / "train.py"
    program.write_text("print(1)\n")
    first = digest(tmp_path, "./src", "synthetic")
    (source / "losses.txt").write_text("0.5\n")
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "train.py").write_text("")
    assert digest(tmp_path, "./src", "synthetic") == first
    program.write_text("print(2)\n")
    assert digest(tmp_path, "./src", "synthetic").partition("-")[0] == first.partition("-")[0]
    assert digest(tmp_path, "./src", "synthetic") != first
