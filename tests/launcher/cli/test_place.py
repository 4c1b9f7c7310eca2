"""The directory of a run if its spec is in another directory, and if the project is copied: real runs of a small program."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forked
from tests.launcher.cli.conftest import Spec

RunIn = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_in(environment: dict[str, str]) -> RunIn:
    def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forked.launcher(*arguments, cwd=directory, env=environment)

    return run


@pytest.fixture
def project(tmp_path: Path, spec: Spec, run_in: RunIn) -> Path:
    """Return a directory with a spec that has run there, its code beside it."""
    directory = tmp_path / "project"
    directory.mkdir()
    (tmp_path / spec("steps", "2", "0")).rename(directory / "toy.yaml")
    assert run_in(directory, "up", "toy.yaml", "--set", "code=.").returncode == 0
    return directory


def test_a_run_beside_its_spec_is_started_elsewhere_only_with_fresh(project: Path, tmp_path: Path, run_in: RunIn) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    up = ("up", "../project/toy.yaml", "--set", f"code={project}")
    refused = run_in(elsewhere, *up)
    assert refused.returncode == 2
    assert "there is no run toy in runs, but one in ../project/runs, beside the spec" in refused.stderr
    assert f"launcher up ../project/toy.yaml --set code={project} --runs ../project/runs" in refused.stderr
    assert "--fresh" in refused.stderr
    assert not (elsewhere / "runs").exists()
    status = run_in(elsewhere, "status", "../project/toy.yaml")
    assert (status.returncode, "--runs ../project/runs" in status.stderr) == (2, True)

    assert "toy is complete" in run_in(elsewhere, *up, "--runs", "../project/runs").stdout
    fresh = run_in(elsewhere, *up, "--fresh")
    assert (fresh.returncode, "step 2/2" in fresh.stdout) == (0, True)
    assert "another run toy" not in run_in(elsewhere, *up, "--runs", "runs").stdout  # --runs is given, though with its default
    assert "another run toy is in ../project/runs" in run_in(elsewhere, *up).stdout


def test_a_copied_project_has_the_same_spec_and_continues(project: Path, tmp_path: Path, run_in: RunIn) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    again = run_in(copy, "up", "toy.yaml", "--set", "code=.")
    assert (again.returncode, "toy is complete" in again.stdout) == (0, True), again.stderr
    assert run_in(copy, "diff", "toy.yaml", "--set", "code=.", "--on", "local").stdout == ""
    (copy / "other").mkdir()
    other = run_in(copy, "diff", "toy.yaml", "--set", "code=other", "--on", "local")
    assert (other.returncode, other.stdout.splitlines()[1].split()[0]) == (1, "code")


def test_a_run_of_another_project_is_resumed_with_a_note(project: Path, tmp_path: Path, run_in: RunIn) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(project / "toy.yaml", other)
    up = ("up", "--runs", "project/runs", "--resume")
    result = run_in(tmp_path, *up, "other/toy.yaml", "--set", f"code={other}")
    assert result.returncode == 0, result.stderr
    assert "it was last started from a spec in project" in result.stdout
