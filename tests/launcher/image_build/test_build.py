"""The docker commands that a build runs, as a script in docker's place receives them."""

from pathlib import Path

import pytest

from launcher.image_build.build import Request, build
from launcher.images import DEFAULT_IMAGE, GPU_IMAGE

DOCKER = """\
#!/bin/sh
case $1 in
build) echo "$@" >> "$0.log"; cat > /dev/null ;;
*) echo '[{"Id": "sha256:1", "Size": 1}]' ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(docker.parent), prepend=":")
    return tmp_path / "bin" / "docker.log"


@pytest.mark.parametrize(
    "gpu, platform, base",
    [
        (False, None, DEFAULT_IMAGE),
        (False, "linux/arm64", f"{DEFAULT_IMAGE}-linux-arm64"),
        (True, "linux/arm/v7", f"{GPU_IMAGE}-linux-arm-v7"),
    ],
)
def test_code_is_added_to_an_image_of_its_platform(gpu: bool, platform: str | None, base: str, log: Path, tmp_path: Path) -> None:
    code = tmp_path / "My Code"
    code.mkdir()
    assert build(Request(gpu=gpu, code=code, platform=platform), lambda _: None).name == f"{base}-with-my-code"
    first, second = log.read_text().splitlines()
    assert f" --tag {base} " in first
    assert f" --build-arg IMAGE={base} --tag {base}-with-my-code " in second
    assert [f"--platform {platform} " in command for command in (first, second)] == [platform is not None] * 2
