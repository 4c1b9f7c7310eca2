"""A full disk: the state of a run is written nevertheless; log lines are lost and counted, and the log says so once there is space again."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.runs import state_file
from launcher.runs.log_files import LineWriter, LogWriter
from launcher.runs.state_file import Snapshot
from launcher.runs.state_writer import StateWriter
from launcher.runs.status import RunStatus, State
from tests import forked
from tests.waiting import until


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the path of a disk of 600 kB, in memory."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", mount_point], check=False).returncode:
        pytest.skip("only root can mount a disk of the test's own")
    yield mount_point
    subprocess.run(["umount", "-l", mount_point], check=True)


def fill(disk: Path, name: str = "filler") -> None:
    """Leave no free byte on the disk, with a file of this name."""
    with (disk / name).open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def lines(path: Path) -> list[str]:
    """Return the lines of a log without their times, which all of them have."""
    stamped = path.read_text().splitlines()
    assert all(line[:2] == "20" and line[23] == "Z" for line in stamped if line), stamped
    return [line[25:] for line in stamped if line]


def test_lost_lines_are_counted_once_there_is_space(disk: Path) -> None:
    log = LogWriter(disk / "chief.log")
    log.feed(b"before\n")
    fill(disk)
    for number in range(2000):  # the log's last page has space for some of them
        log.feed(b"line %d %s\n" % (number, b"x" * 50))
    log.note_lost_lines()
    (disk / "filler").unlink()
    log.note_lost_lines()
    log.note_lost_lines()
    log.feed(b"after\n")
    log.close()
    first, *written, note, last = lines(disk / "chief.log")
    assert (first, last) == ("before", "after")
    whole = [line for line in written if line.endswith(50 * "x")]
    assert note.startswith(f"--- launcher: {2000 - len(whole):,} lines could not be written here, the first at 20")
    assert len(written) - len(whole) <= 1  # the one that was torn


def test_lost_lines_are_reported_at_the_end_too_and_a_lost_note_is_not_counted(disk: Path) -> None:
    fill(disk)
    with (disk / "own.log").open("wb", buffering=0) as file:
        writer = LineWriter(file.fileno())
        for now in range(3):
            writer.write([b"one", b"two"], float(now))
        (disk / "filler").unlink()
        writer.write([], 9.0)
        assert not writer.has_lost
    assert (
        disk / "own.log"
    ).read_text() == "1970-01-01T00:00:09.000Z 6 lines could not be written here, the first at 1970-01-01T00:00:00.000Z\n"


def test_the_state_is_written_on_a_full_disk_repeatedly(disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    now, step = [1000.0], [0]
    path = disk / "state.json"

    def snapshot() -> Snapshot:
        return Snapshot(RunStatus("run", "local", State.RUNNING, step=step[0], reason="x" * 20_000), "here")

    writer = StateWriter(path, snapshot, lambda: now[0])
    writer.reserve()
    assert writer.save()
    fill(disk)
    for count in range(1, 5):
        step[0] = count
        now[0] += 2
        writer.changed()
        assert writer.save_if_due()
        written = state_file.read(path)
        assert written is not None
        assert written.status.step == count
        assert (disk / "reserve").stat().st_size >= 64 * 1024
        assert writer.due == now[0] + 2  # until it can be written without the reserve
    (disk / "filler").unlink()
    now[0] += 2
    assert writer.save_if_due()
    assert writer.due is None
    messages = capfd.readouterr().out.splitlines()
    assert [line[25:] for line in messages] == [
        "the state could not be written: No space left on device; it is tried again",
        "the state can be written again, after 8 s",
    ]


def test_the_space_is_reserved_again_once_there_is_some(disk: Path) -> None:
    now, reserve, more = [1000.0], disk / "reserve", disk / "more"
    reason = ["x" * 300_000]
    writer = StateWriter(
        disk / "state.json", lambda: Snapshot(RunStatus("run", "local", State.RUNNING, reason=reason[0]), "here"), lambda: now[0]
    )
    writer.reserve()
    whole = reserve.stat().st_size
    fill(disk)
    assert not writer.save()  # not even in that space
    assert reserve.stat().st_size == whole
    reserve.unlink()
    more.write_bytes(bytes(whole - 100_000))  # another process has taken most of it
    reason[0] = "x"
    assert writer.save()
    assert 0 < reserve.stat().st_size < whole
    assert writer.due == now[0] + 2
    (disk / "filler").unlink()
    now[0] += 2
    assert writer.save_if_due()
    assert reserve.stat().st_size == whole
    assert writer.due is None


def test_the_last_state_is_written_once_there_is_space_though_the_reserve_is_lost(disk: Path) -> None:
    writer = StateWriter(disk / "state.json", lambda: Snapshot(RunStatus("run", "local", State.SUCCEEDED), "here"))
    writer.reserve()
    fill(disk)
    (disk / "reserve").unlink()
    fill(disk, "more")
    assert not writer.save()
    (disk / "more").unlink()
    writer.save_final()
    assert state_file.read(disk / "state.json") is not None
    assert not (disk / "reserve").exists()


def test_a_run_on_a_full_disk_continues_with_its_status_and_reports_lost_lines(disk: Path, tmp_path: Path) -> None:
    def launcher(*arguments: str) -> str:
        result = forked.launcher(*arguments, "--runs", str(disk), cwd=tmp_path, env=dict(os.environ))
        return result.stdout + result.stderr

    script = f"echo line {'x' * 500}; sleep 0.02; [ -e {tmp_path}/fail ] && rm {tmp_path}/fail && exit 1; [ -e {tmp_path}/end ] && exit 0"
    program = f"while :; do {script}; done"
    (tmp_path / "toy.yaml").write_text(f"version: 1\nname: toy\ncommand: [sh, -c, '{program}']\nlimits: {{grace_period: 1s}}\n")
    output = launcher("up", "toy.yaml", "--detach")
    log, supervisor_log = disk / "toy/launcher/tasks/chief.log", disk / "toy/launcher/supervisor.log"
    try:
        until("the program to write", lambda: "line" in log.read_text(), seen=lambda: output)
        fill(disk)
        size = log.stat().st_size
        time.sleep(1)
        assert log.stat().st_size - size < 4096  # the rest of its last page
        (tmp_path / "fail").touch()
        until(
            "the restart to be seen",
            lambda: "exit code 1" in launcher("status", "toy", "--json"),
            seen=lambda: launcher("status", "toy"),
            every=0.1,
        )
        (disk / "filler").unlink()
        until("the lost lines to be reported", lambda: "lines could not be written here" in log.read_text(), seen=supervisor_log.read_text)
        until(
            "the supervisor to say so",
            lambda: "the state can be written again" in supervisor_log.read_text(),
            seen=supervisor_log.read_text,
        )
        (tmp_path / "end").touch()
        until(
            "its end",
            lambda: '"state": "succeeded"' in launcher("status", "toy", "--json"),
            seen=lambda: launcher("status", "toy"),
            every=0.1,
        )
    finally:
        launcher("down", "toy", "--now")
    assert sum("could not be written here" in line for line in log.read_text().splitlines()) == 1
