"""A task's log file: its lines, and reading it from a time or from the end."""

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs import log_files
from launcher.runs.log_files import LogWriter
from launcher.runs.status import LogLine
from launcher.timestamps import rfc3339


def read(path: Path, offset: int = 0) -> list[LogLine]:
    return [line for _, line in log_files.read(path, offset)]


def texts(path: Path, offset: int = 0) -> list[str]:
    return [line.text for line in read(path, offset)]


def write(path: Path, seconds: list[float]) -> None:
    path.write_text("".join(f"{rfc3339(second)} line {number}\n" for number, second in enumerate(seconds)))


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Let writes beyond `size` fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_every_line_has_its_time(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "worker-0.log")
    before = time.time()
    assert log.feed(b"one\ntwo\nthr") == [b"one", b"two"]
    assert log.feed(b"ee\n") == [b"three"]
    log.feed(b"no end")
    log.close()
    lines = read(tmp_path / "worker-0.log")
    assert [line.text for line in lines] == ["one", "two", "three", "no end"]
    assert all(line.task == "worker-0" and before - 0.001 <= line.time <= time.time() for line in lines)


def test_a_progress_bar_is_one_line_as_a_terminal_shows_it(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "a.log")
    log.feed(b"10%\r50%\r100%\nwindows\r\n\r\n")
    log.close()
    assert texts(tmp_path / "a.log") == ["100%", "windows", ""]


def test_output_without_line_ends_and_bytes_that_are_no_text_are_stored(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "a.log")
    for _ in range(3):
        log.feed(b"x" * 30_000)
    log.feed(b"\n\xff\xfe\n")
    log.close()
    assert [len(text) for text in texts(tmp_path / "a.log")] == [90_000, 2]


def test_a_line_too_long_is_cut_and_its_parts_are_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "LONGEST_LINE", 10)
    event = b'{"event":"started"}'
    log = LogWriter(tmp_path / "a.log")
    assert [line for part in (b"x" * 11, event, event + b"\n", event + b"\n") for line in log.feed(part)] == [
        b"x" * 11, b" " + event, b" " + event, event,
    ]  # fmt: skip
    log.close()


def test_the_first_line_after_a_task_that_ended_in_a_line_too_long_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "LONGEST_LINE", 10)
    writer = LogWriter(tmp_path / "chief.log")
    writer.feed(b"x" * 11)
    assert writer.end() == []
    assert writer.feed(b'{"event": "started"}\n') == [b'{"event": "started"}']
    writer.close()


def test_an_unfinished_line_is_not_joined_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{rfc3339(5)} whole\n{rfc3339(6)} torn")
    log = LogWriter(path)
    log.feed(b"next\n")
    log.close()
    assert texts(path) == ["whole", "torn", "next"]


def test_times_never_go_back_even_when_the_clock_does(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    future = time.time() + 1000
    write(path, [future])
    log = LogWriter(path)
    log.feed(b"later\n")
    log.close()
    times = [line.time for line in read(path)]
    assert times == sorted(times)


def test_lines_lost_on_a_full_disk_are_noted_once_it_has_space(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = LogWriter(path)
    log.feed(b"before\n")
    with limited_file_size(path.stat().st_size):
        assert log.feed(b"lost 1\nlost 2\n") == [b"lost 1", b"lost 2"]
        log.feed(b"lost 3\n")
    log.feed(b"after\n")
    log.close()
    first, note, last = texts(path)
    assert (first, last) == ("before", "after")
    assert "could not be written" in note


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=60).map(sorted), st.floats(0, 4e9), st.integers(0, 70))
def test_since_and_tail_agree_with_reading_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[float], since: float, tail: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "a.log"
    write(path, seconds)
    lines = read(path)
    after = [line for line in lines if rfc3339(line.time + 1e-4) >= rfc3339(since)]
    assert read(path, log_files.since_offset(path, since)) == after
    assert read(path, log_files.tail_offset(path, tail)) == lines[len(lines) - min(tail, len(lines)) :]


def test_the_end_of_a_big_file_is_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    write(path, [float(number) for number in range(400_000)])
    started = time.thread_time()
    assert texts(path, log_files.tail_offset(path, 2)) == ["line 399998", "line 399999"]
    assert texts(path, log_files.since_offset(path, 399_998.5)) == ["line 399999"]
    assert time.thread_time() - started < 0.05


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    missing = tmp_path / "a.log"
    assert (log_files.tail_offset(missing, 3), log_files.since_offset(missing, 3), read(missing)) == (0, 0, [])


def test_a_damaged_line_has_the_time_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{rfc3339(5)} good\nnonsense\n2026-99-99T00:00:00.000Z worse\n")
    damaged = [(5, "nonsense"), (5, "2026-99-99T00:00:00.000Z worse")]
    assert [(line.time, line.text) for line in read(path)] == [(5, "good"), *damaged]
    assert [(line.time, line.text) for line in read(path, log_files.tail_offset(path, 2))] == damaged
    assert [(line.time, line.text) for line in read(path, log_files.tail_offset(path, 1))] == damaged[1:]
