"""Small files are written beside training, with a bound on what waits in memory."""

import threading
from pathlib import Path

import pytest

from tests.trainer.engine.test_loop import Output
from trainer.engine import file_writer
from trainer.engine.file_writer import FileWriter
from trainer.events import Reporter


def test_two_threads_together_keep_no_more_than_the_limit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, written = Output(), threading.Event()
    writer = FileWriter(Reporter("chief", output))
    other = threading.Thread(target=lambda: writer.append(tmp_path / "other", b"12345678"))

    class Limit(int):
        """Lets another thread append when it is first compared."""

        def __lt__(self, size: int) -> bool:
            if not other.ident:
                other.start()
                other.join(0.2)
            return int(self) < size

    def hang() -> None:
        written.wait(60)

    monkeypatch.setattr(file_writer, "_MAX_PENDING", Limit(10))
    writer.call(tmp_path / "own", hang)
    writer.append(tmp_path / "own", b"12345678")
    other.join()
    written.set()
    writer.close(10)
    assert [event["message"][:8] for event in output.events("notice")] == ["8 bytes "]
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
