"""Refusals before anything is started, and images of ours that are not what they should be."""

from pathlib import Path

import pytest

from launcher import images
from launcher.backend.docker.engine import Endpoint
from launcher.backend.docker.image_prep import _is_stale, check_directories
from launcher.errors import UsageError
from launcher.image_build.context import source_digest
from launcher.images import Image
from launcher.spec.models import ClusterSpec

HERE, ELSEWHERE = Endpoint("unix:///var/run/docker.sock"), Endpoint("ssh://me@far")


def spec(**more: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"version": 1, "name": "toy", "train": {"workload": "mnist_mlp"}, **more})


def test_an_engine_elsewhere_mounts_no_directory_of_this_machine(tmp_path: Path) -> None:
    code = spec(code=str(tmp_path))
    data = spec(train={"workload": "mnist_mlp", "data": str(tmp_path)})
    for one in (code, data):
        check_directories(one, HERE)
    with pytest.raises(UsageError, match="on another machine") as caught:
        check_directories(code, ELSEWHERE)
    assert "launcher image build --code" in caught.value.remedy
    with pytest.raises(UsageError, match=r"train\.data"):
        check_directories(data, ELSEWHERE)
    check_directories(spec(), ELSEWHERE)


@pytest.mark.parametrize(
    "named, of, stale",
    [(None, "0123", True), (None, source_digest(), False), (None, None, False), ("mine:1", "0123", False)],
    ids=["other sources", "these", "not known", "the user's own"],
)
def test_an_image_of_other_sources_is_not_taken_for_ours(named: str | None, of: str | None, stale: bool) -> None:
    labelled = {} if of is None else {images.SOURCE_DIGEST: of}
    one = spec(image=named) if named else spec()
    assert _is_stale(one, Image(images.image_for(one), "sha256:1", 1, labelled)) is stale
