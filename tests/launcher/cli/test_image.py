"""`launcher image build` with arguments that it refuses before it contacts an engine."""

from pathlib import Path

import pytest

from launcher.cli.main import run


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--code", "nowhere"], "--code: nowhere does not exist"),
        (["--code", "file"], "--code: file is not a directory"),
        (["--code", "empty"], "--code: empty is empty"),
        (["--tag", "Upper:1"], '--tag: "Upper:1" is not an image'),
        (["--base-image", "-v"], "--base-image: "),
        (["--pip-config", "nowhere"], "--pip-config: there is no file nowhere"),
        (["--ca-file", "file"], "--ca-file: file has no certificate in PEM format"),
        (["--build-arg", "=x"], "--build-arg: '=x' is not NAME=VALUE"),
    ],
)
def test_an_unusable_argument_is_refused_at_once(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    assert run(["image", "build", *arguments]) == 2
    error = capsys.readouterr().err
    assert f"error: {message}" in error
    assert "remedy: " in error
    assert "building" not in error


def test_a_missing_docker_command_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["image", "build"]) == 1
    assert "error: the command docker is not installed" in capsys.readouterr().err
