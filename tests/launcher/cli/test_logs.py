"""The position from which a reader of logs continues: tasks may be on machines whose clocks differ."""

from launcher.cli.logs import Position
from launcher.runs.status import LogLine

WRITTEN = [LogLine(5.0, "worker-0", "a"), LogLine(9.0, "chief", "b"), LogLine(9.0, "chief", "c")]
LATER = [LogLine(6.0, "worker-0", "its clock is behind"), LogLine(9.0, "chief", "of the same moment")]


def position(lines: list[LogLine]) -> Position:
    result = Position()
    assert list(result.note(lines)) == lines
    return result


def test_a_reader_continues_after_the_last_line_of_each_task() -> None:
    assert list(position(WRITTEN).after(sorted(WRITTEN + LATER, key=lambda line: line.time))) == LATER


def test_a_reader_starts_at_the_last_line_of_the_slowest_clock_and_reads_all_lines_of_a_task_without_earlier_ones() -> None:
    assert position(WRITTEN).since(["chief", "worker-0"], None) == 5.0
    assert position(WRITTEN).since(["chief", "worker-1"], 2.0) == 2.0
    first = LogLine(1.0, "worker-1", "its first")
    assert list(position(WRITTEN).after([first, *WRITTEN])) == [first]
