"""The files of `code`, and their digest."""

import os
from pathlib import Path

import pytest

from launcher.errors import LauncherError
from launcher.plan import code
from launcher.render.kubernetes import configmaps


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with a program, and with links to a package beside it and back to itself."""
    own = tmp_path / "own"
    (own / "tools").mkdir(parents=True)
    (tmp_path / "common" / "__pycache__").mkdir(parents=True)
    for path in ("own/train.py", "own/.hidden.py", "own/tools/one.py", "common/losses.py", "common/__pycache__/losses.pyc"):
        (tmp_path / path).write_text(path)
    (own / "common").symlink_to("../common")
    (own / "tools" / "common").symlink_to("../../common")
    (tmp_path / "common" / "back").symlink_to("../own")
    return own


def test_files_below_links_belong_to_the_code_each_time_and_a_link_back_is_not_followed(directory: Path) -> None:
    files = [path.relative_to(directory).as_posix() for path in code.files(directory)]
    assert files == ["train.py", "common/losses.py", "tools/one.py", "tools/common/losses.py"]
    before = code.digest_suffix(str(directory))
    (directory / "common" / "losses.py").write_text("changed")
    assert code.code_differs(before, code.digest_suffix(str(directory)))


def test_a_fifo_is_not_read(directory: Path) -> None:
    before = list(code.files(directory))
    os.mkfifo(directory / "pipe.py")
    assert list(code.files(directory)) == before


def test_what_cannot_be_read_is_named(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"gone cannot be read: No such file or directory"):
        configmaps._files(tmp_path / "gone")
    (directory / "lost.py").symlink_to("nowhere")
    with pytest.raises(LauncherError, match=r"lost\.py cannot be read: No such file or directory"):
        [configmaps._read(path) for path in configmaps._files(directory)]
    assert code.digest_suffix(str(directory))
