"""Files that may hold secrets: only their owner may read them."""

import os
from pathlib import Path

from launcher.files import is_private, write


def test_only_the_owner_can_read_a_private_file_whether_it_existed_or_is_new(tmp_path: Path) -> None:
    (tmp_path / "existing").write_text("old text")
    (tmp_path / "existing").chmod(0o644)
    for name in ("existing", "new"):
        write(tmp_path / name, "secret", private=True)
        assert is_private(tmp_path / name)


def test_a_pipe_keeps_its_mode(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o644)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, "secret", private=True)
        assert os.read(reader, 100) == b"secret"
    finally:
        os.close(reader)
    assert pipe.stat().st_mode & 0o777 == 0o644
