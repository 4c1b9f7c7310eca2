"""A spec's identity is the same wherever its project is; paths that are not UTF-8 are refused."""

import os
import re
import sys
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.plan.spec_file import plan_file


def digest(project: Path, code: str, data: str) -> str:
    project.mkdir(parents=True, exist_ok=True)
    for directory in (code, data):
        if "/" in directory:
            (project / directory).mkdir(parents=True, exist_ok=True)
    file = project / "toy.yaml"
    file.write_text(f"version: 1\nname: toy\ncode: {code}\ntrain: {{workload: mnist, data: {data}, steps: 1}}\n")
    return plan_file(file, (), "local", project / "runs")[1].spec_digest


@pytest.mark.parametrize("data", ["./data", "../data", "{tmp}/data", "synthetic"])
def test_a_spec_is_the_same_wherever_its_project_is(data: str, tmp_path: Path) -> None:
    first, *others = [
        digest(tmp_path / parent / "project", "../src", data.format(tmp=tmp_path)) for parent in ("one", "other", "further/below")
    ]
    assert others == [first, first]


@pytest.mark.parametrize("code, data", [("./src", "../data"), ("../src", "./data"), ("../src", "{tmp}/data")])
def test_other_code_or_data_is_another_spec(code: str, data: str, tmp_path: Path) -> None:
    project = tmp_path / "one" / "project"
    assert digest(project, code, data.format(tmp=tmp_path)) != digest(project, "../src", "../data")


def test_python_code_is_part_of_a_spec_s_identity_and_files_that_a_run_writes_beside_it_are_not(tmp_path: Path) -> None:
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


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take only UTF-8")
@pytest.mark.parametrize(
    "spec, runs, message",
    [
        ("command: [python]", "runs", "the run directory is not UTF-8: {tmp}/runs-\\xff/runs/toy"),
        ("command: [python]\ncode: .", "/elsewhere", "`code` is not UTF-8: {tmp}/runs-\\xff"),
        ("train: {workload: mnist, data: ./}", "/elsewhere", "`train.data` is not UTF-8: {tmp}/runs-\\xff"),
        (
            "command: [python]\nvolumes: [{name: sets, path: ., mount_path: /s}]",
            "/elsewhere",
            "the volume sets is not UTF-8: {tmp}/runs-\\xff",
        ),
    ],
)
def test_a_directory_that_is_not_utf_8_is_refused_and_shown(spec: str, runs: str, message: str, tmp_path: Path) -> None:
    project = tmp_path / os.fsdecode(b"runs-\xff")
    project.mkdir()
    (project / "toy.yaml").write_text(f"version: 1\nname: toy\n{spec}\n")
    with pytest.raises(UsageError, match=re.escape(message.format(tmp=tmp_path)) + r"\Z"):
        plan_file(project / "toy.yaml", (), "local", project / runs)
