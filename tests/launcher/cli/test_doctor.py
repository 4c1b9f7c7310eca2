"""`launcher doctor` on this machine, and where there is no engine or cluster."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.cli.main import run
from tests.golden_messages import Golden


def findings(output: str) -> dict[str, tuple[str, str]]:
    return {one["what"]: (one["level"], one["words"]) for one in json.loads(output)["findings"]}


def test_this_machine_can_run_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--runs", str(tmp_path / "runs"), "--json"]) == 0
    results = findings(capsys.readouterr().out)
    assert results["tensorflow"] == ("ok", "installed")
    assert results["runs"][0] == "ok"


def test_more_gpus_than_the_machine_has_are_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    spec = tmp_path / "spec.yaml"
    spec.write_text("version: 1\nname: digits\nroles: {chief: {gpus: 2}}\ntrain: {workload: mnist_mlp}\n")
    assert run(["doctor", str(spec), "--runs", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert "problem  GPUs: the spec asks for 2, this machine has 0" in output
    assert "ask for fewer" in output


@pytest.mark.skipif(os.geteuid() == 0 and sys.platform != "linux", reason="root writes everywhere; only on Linux it can drop that right")
@pytest.mark.parametrize("mode", [0o500, 0o600], ids=["read only", "not searchable"])
def test_a_directory_that_cannot_be_written_is_a_problem(tmp_path: Path, mode: int) -> None:
    # access(2) counts every capability that root may use: only a process that starts without them is bound by the modes of files.
    unprivileged = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    tmp_path.chmod(mode)
    try:
        doctor = (*unprivileged, sys.executable, "-m", "launcher", "doctor", "--runs", str(tmp_path / "runs"))
        result = subprocess.run(doctor, capture_output=True, text=True, timeout=60, check=False)
    finally:
        tmp_path.chmod(0o700)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "cannot be written: Permission denied" in result.stdout


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.EIO], ids=errno.errorcode.get)
def test_a_directory_that_cannot_be_written_is_reported_with_the_cause(
    code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def fail(**_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    assert run(["doctor", "--runs", str(tmp_path / "runs"), "--json"]) == 1
    [finding] = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["what"] == "runs"]
    golden(finding["words"], finding["remedy"])


@pytest.mark.parametrize("below", ["", "runs"])
def test_runs_in_a_file_are_a_problem(below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["doctor", "--runs", str(tmp_path / "file" / below), "--json"]) == 1
    assert findings(capsys.readouterr().out)["runs"] == ("problem", f"{tmp_path}/file is not a directory")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--context", "x"],
        ["--namespace", "x", "--on", "docker"],
        ["--set", "train.steps=5"],
        ["--set", "train.steps=5", "--on", "kubernetes"],
    ],
    ids=" ".join,
)
def test_an_option_without_effect_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert run(["doctor", *arguments]) == 2
    golden(*capsys.readouterr().err.splitlines())


def test_an_engine_that_does_not_answer_is_a_problem(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert run(["doctor", "--on", "docker", "--json"]) == 1
    assert findings(capsys.readouterr().out)["engine"][0] == "problem"


def test_without_a_cluster_the_remedy_is_to_set_kubeconfig(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert run(["doctor", "--on", "kubernetes"]) == 1
    assert "set KUBECONFIG to the file that names your cluster" in capsys.readouterr().out
