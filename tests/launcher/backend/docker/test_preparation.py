"""Checks before a run is started: directories of this machine for a remote engine, and images of ours that are outdated."""

from pathlib import Path

import pytest

from launcher import images
from launcher.backend.docker.engine import Endpoint
from launcher.backend.docker.preparation import _build, _is_stale, check_directories
from launcher.errors import UsageError
from launcher.image_build import build
from launcher.image_build.context import source_digest
from launcher.images import Image
from launcher.spec.models import ClusterSpec

LOCAL, REMOTE = Endpoint("unix:///var/run/docker.sock"), Endpoint("ssh://me@far")


def spec(**sections: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}, **sections})


def test_a_remote_engine_mounts_no_directory_of_this_machine(tmp_path: Path) -> None:
    code = spec(code=str(tmp_path))
    data = spec(train={"workload": "mnist_mlp", "data": str(tmp_path)})
    for one in (code, data):
        check_directories(one, LOCAL)
    with pytest.raises(UsageError, match="on another machine") as caught:
        check_directories(code, REMOTE)
    assert "launcher image build --code" in caught.value.remedy
    with pytest.raises(UsageError, match=r"train\.data"):
        check_directories(data, REMOTE)
    check_directories(spec(), REMOTE)


@pytest.mark.parametrize(
    "name, digest, stale",
    [(None, "0123", True), (None, source_digest(), False), (None, None, False), ("mine:1", "0123", False)],
    ids=["other sources", "the same sources", "unknown sources", "the user's own"],
)
def test_an_image_of_ours_is_stale_if_it_has_other_sources(name: str | None, digest: str | None, stale: bool) -> None:
    image_labels = {} if digest is None else {images.SOURCE_DIGEST_LABEL: digest}
    user_spec = spec(image=name) if name else spec()
    assert _is_stale(user_spec, Image(images.spec_image(user_spec), "sha256:1", 1, image_labels)) is stale


def test_an_error_of_the_build_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", "/etc/ca.pem")

    monkeypatch.setattr(build, "build", fail)
    with pytest.raises(PermissionError, match=r"/etc/ca\.pem"):
        list(_build(gpu=False))
