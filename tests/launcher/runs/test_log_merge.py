"""Several logs as one stream."""

from pathlib import Path

from launcher.runs.log_merge import merged
from launcher.timestamps import rfc3339


def files(directory: Path, **lines: list[float]) -> dict[str, Path]:
    paths = {}
    for task, seconds in lines.items():
        paths[task] = directory / f"{task}.log"
        paths[task].write_text("".join(f"{rfc3339(second)} {second:g}\n" for second in seconds))
    return paths


def test_lines_come_in_order_of_time(tmp_path: Path) -> None:
    logs = merged(files(tmp_path, chief=[1, 4, 6], ps=[2, 3, 10], worker=[]))  # as text 10 would be before 4
    assert [(line.task, line.text) for line in logs] == [
        ("chief", "1"), ("ps", "2"), ("ps", "3"), ("chief", "4"), ("chief", "6"), ("ps", "10"),
    ]  # fmt: skip


def test_since_and_tail_hold_for_each_task(tmp_path: Path) -> None:
    logs = files(tmp_path, chief=[1, 4, 6], ps=[2, 3, 7])
    assert [line.text for line in merged(logs, since=3)] == ["3", "4", "6", "7"]
    assert [line.text for line in merged(logs, tail=1)] == ["6", "7"]
    assert [line.text for line in merged(logs, since=5, tail=2)] == ["6", "7"]


def test_following_reads_lines_written_before_the_end_was_reported(tmp_path: Path) -> None:
    logs = files(tmp_path, chief=[1])
    later = tmp_path / "ps.log"
    logs["ps"] = later  # is created only while the logs are followed
    answers = iter([False, False, True])

    def ended() -> bool:
        has_ended = next(answers)
        if has_ended:
            later.write_text(f"{rfc3339(9)} 9\n")
        return has_ended

    assert [line.text for line in merged(logs, follow=True, ended=ended)] == ["1", "9"]
