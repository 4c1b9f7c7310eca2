"""`launcher image build` where it refuses, before any engine is asked."""

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
def test_what_cannot_be_used_is_refused_at_once(cli: Cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    done = cli("image", "build", *arguments, env={"DOCKER_HOST": "tcp://127.0.0.1:1"})
    assert done.returncode == 2
    assert f"error: {message}" in done.stderr
    assert "remedy: " in done.stderr
    assert "building" not in done.stderr


def test_without_the_docker_command_it_says_what_to_install(cli: Cli, tmp_path: Path) -> None:
    done = cli("image", "build", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "error: the command docker is not installed" in done.stderr
