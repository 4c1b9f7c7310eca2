"""The cost of tests: `pytest --costs=FILE` writes processor seconds and seconds of each module and test to FILE, as CSV, and prints the most costly.

As root on Linux the tests get a cgroup, so processor seconds include all descendants of a test, daemons too. Elsewhere they include only the test
process and the children that it waited for. Containers and pods are never included.
"""

import csv
import os
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import forked


def _own_group() -> Path | None:
    """Create a cgroup, move this process into it, and return it; None if that is not permitted."""
    roots = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))  # of cgroup 2: beside version 1, and without it
    for root in (root for root in roots if (root / "cgroup.controllers").exists()):
        for stale in (group for group in root.glob("tests-*") if not Path("/proc", group.name.removeprefix("tests-")).exists()):
            with suppress(OSError):  # another process has removed it, or something still runs in it
                stale.rmdir()
        with suppress(OSError):
            (own := root / f"tests-{os.getpid()}").mkdir()
            (own / "cgroup.procs").write_text(str(os.getpid()))
            return own
    return None


_COLLECTION = "collection, in all test processes"


class Costs:
    """Measures the seconds in the test processes, and adds them up in the process that reports."""

    def __init__(self) -> None:
        self._group, self._before, self._new = _own_group(), 0.0, list[tuple[str, float, float]]()
        forked.group = str(self._group / "cgroup.procs") if self._group else ""
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # of a module or a test: processor seconds, seconds

    def _record(self, name: str, seconds: float) -> None:
        now = int((self._group / "cpu.stat").read_text().split()[1]) / 1e6 if self._group else sum(os.times()[:4])  # "usage_usec 123"
        self._new.append((name, now - self._before, seconds))
        self._before = now

    def pytest_collection_finish(self) -> None:
        self._record(_COLLECTION, 0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._record(report.nodeid, report.duration)
        report.__dict__["costs"], self._new = self._new, []
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for test, processors, seconds in report.costs:
            for name in {test, test.partition("::")[0]}:
                self._sums[name] = [self._sums[name][0] + processors, self._sums[name][1] + seconds]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        collecting = Path(forked.shared.directory, forked.COLLECTION_SECONDS)  # of the process from which the test processes are forked
        if collecting.exists():
            self._sums[_COLLECTION][0] += float(collecting.read_text())
        rows = sorted(((name, costs[0], costs[1]) for name, costs in self._sums.items()), key=lambda row: -row[1])
        modules, tests = ([row for row in rows if ("::" in row[0]) == is_test] for is_test in (False, True))
        terminalreporter.section(
            f"costs: {sum(row[1] for row in modules):.0f} processor seconds; the most costly, and their seconds in all"
        )
        for name, processors, seconds in (*modules[:10], *tests[:10]):
            terminalreporter.write_line(f"{processors:7.1f} {seconds:7.1f}  {name}")
        with Path(config.getoption("costs")).open("w", newline="") as file:
            csv.writer(file).writerows([("module or test", "processor seconds", "seconds"), *rows])
