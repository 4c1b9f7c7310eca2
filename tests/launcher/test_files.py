"""Files that may hold secrets: nobody but their owner may read them."""

import os
from pathlib import Path

from launcher.files import is_private, write


def test_a_private_file_is_its_owners_alone_also_where_it_was_there(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("of before")
    (tmp_path / "there").chmod(0o644)
    for name in ("there", "new"):
        write(tmp_path / name, "secret", private=True)
        assert is_private(tmp_path / name)


def test_the_mode_of_what_is_no_regular_file_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pipe.chmod(0o644)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, "secret", private=True)
        assert os.read(reading, 100) == b"secret"
    finally:
        os.close(reading)
    assert pipe.stat().st_mode & 0o777 == 0o644
