"""`launcher image build` with arguments that it refuses before it contacts an engine."""

from pathlib import Path

import pytest

from tests.launcher.cli.conftest import Cli


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
def test_an_unusable_argument_is_refused_at_once(cli: Cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    result = cli("image", "build", *arguments, env={"DOCKER_HOST": "tcp://127.0.0.1:1"})
    assert result.returncode == 2
    assert f"error: {message}" in result.stderr
    assert "remedy: " in result.stderr
    assert "building" not in result.stderr


def test_a_missing_docker_command_is_an_error(cli: Cli, tmp_path: Path) -> None:
    result = cli("image", "build", env={"PATH": str(tmp_path)})
    assert result.returncode == 1
    assert "error: the command docker is not installed" in result.stderr
