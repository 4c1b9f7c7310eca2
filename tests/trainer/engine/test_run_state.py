"""The record of a run: complete, or absent."""

import json
import threading
from pathlib import Path

import pytest

from trainer.engine import run_state


def test_a_written_record_is_read(tmp_path: Path) -> None:
    record = run_state.Record(tmp_path, name="mnist", steps=100)
    record.update("running", 10)
    record.update("running", 20, checkpoint="/ckpt-20")
    content = run_state.read(tmp_path)
    assert (content["name"], content["state"], content["step"], content["checkpoint"]) == ("mnist", "running", 20, "/ckpt-20")
    assert set(content["versions"]) == {"trainer", "tensorflow", "keras", "python"}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_a_missing_or_invalid_record_reads_as_empty(tmp_path: Path, content: str) -> None:
    assert run_state.read(tmp_path) == {}
    (tmp_path / "run.json").write_text(content)
    assert run_state.read(tmp_path) == {}


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    texts = [json.dumps({"step": n, "filler": str(n) * 20_000}) for n in range(2)]
    run_state.write_atomically(path, texts[0])
    finished = threading.Event()

    def write() -> None:
        for n in range(200):
            run_state.write_atomically(path, texts[n % 2])
        finished.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not finished.is_set():
        assert path.read_text() in texts
    thread.join()
