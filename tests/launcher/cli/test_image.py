"""`launcher image build` with arguments that it refuses before it contacts an engine."""

from pathlib import Path

import pytest

from launcher.cli.main import run
from launcher.image_build import build
from launcher.images import Image


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


def test_a_large_directory_in_the_image_is_named_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code[" / "b]"
    (code / ".git").mkdir(parents=True)
    monkeypatch.setattr(build, "build", lambda *_, **__: Image("mine:1", "sha256:1", 1, {}))
    assert run(["image", "build", "--code", str(code), "--tag", "mine:1"]) == 0
    assert f"note: the image will contain {code / '.git'};" in capsys.readouterr().err
