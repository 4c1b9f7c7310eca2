"""The docker commands that a build runs, as a script in docker's place receives them."""

from pathlib import Path

import pytest

from launcher.docker_cli import DockerError
from launcher.image_build.build import BuildRequest, build, push
from launcher.images import DEFAULT_IMAGE, GPU_IMAGE
from tests.golden_messages import Golden

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
    assert build(BuildRequest(gpu=gpu, code=code, platform=platform), lambda _: None).name == f"{base}-with-my-code"
    first, second = log.read_text().splitlines()
    assert f" --tag {base} " in first
    assert f" --build-arg IMAGE={base} --tag {base}-with-my-code " in second
    assert [f"--platform {platform} " in command for command in (first, second)] == [platform is not None] * 2


@pytest.mark.parametrize(
    "name",
    [
        "user/image:1",
        "docker.io/user/image",
        "image:1",
        "docker.io/image:1",
        "registry.example/team/image:1",
        "registry:5000/image",
        "localhost/image",
    ],
)
def test_a_push_that_is_refused_names_the_login_of_the_image_s_registry(name: str, log: Path, golden: Golden) -> None:
    log.with_name("docker").write_text("#!/bin/sh\necho 'denied: requested access to the resource is denied' >&2\nexit 1\n")
    with pytest.raises(DockerError) as refused:
        push(name)
    golden(refused.value.message, refused.value.remedy)
