"""Moves a second of gridworld_dqn's boards: for 1, 2 and 4 workers, and for boards a worker.

    python -m benchmarks.gridworld [--seconds 15] [--json | --markdown] [--write docs/performance.md]

Each case is `launcher up` of parameter_server with the full network, one core a task. The workers play with the network; the chief
takes the moves into its replay buffer and, but for the last case, makes no updates, which would take longer than the moves.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import ours, report, task
from benchmarks.measuring import ENVIRONMENT
from trainer import events

NEVER = 1_000_000_000  # steps


@dataclass(frozen=True)
class Case:
    """How many workers play how many boards each, and whether the chief learns from it."""

    workers: int
    boards: int
    learns: bool = False


CASES = (
    *(Case(1, boards) for boards in (1, 4, 16, 64, 256)),
    *(Case(workers, boards) for boards in (16, 64) for workers in (2, 4)),
    Case(2, 16, learns=True),
)


def spec(case: Case, seconds: float) -> dict[str, object]:
    """Return a spec that plays for so many seconds."""
    # An update needs a batch of moves, no more.
    params = {"boards": case.boards, "random_steps": 100 if case.learns else NEVER - 1}
    train = {"workload": "gridworld_dqn", "params": params, "max_seconds": seconds}
    return {
        "version": 1,
        "name": "bench-gridworld",
        "strategy": "parameter_server",
        "roles": ours.ROLES["parameter_server"](case.workers),
        "train": {**train, "steps": NEVER, "evaluate": {"every_steps": 0}, "summaries": {"every_steps": 0}},
    }


def moves_a_second(case: Case, seconds: float) -> float:
    """Run a case and return the moves of all boards a second, after the first quarter of the time."""
    marks: list[tuple[int, float]] = []

    def note(event: events.Event) -> None:
        if event["event"] == "progress" and "local_step" not in event:
            marks.append((event["step"], event["time"]))

    ours.run(spec(case, seconds), note)
    warm = marks[0][1] + seconds * task.WARM_UP
    steady = [mark for mark in marks if mark[1] >= warm]
    if len(steady) < 2:
        sys.exit(f"{case}: {len(steady)} progress events after the first quarter of {seconds} s; expected 2 or more, give more --seconds")
    (first_step, first_time), (last_step, last_time) = steady[0], steady[-1]
    return (last_step - first_step) / (last_time - first_time)


def sheet(measured: dict[Case, float]) -> report.Sheet:
    """Return the table."""
    rows = [
        ("plays, the chief learns" if case.learns else "plays", str(case.workers), str(case.boards), f"{rate:,.0f}")
        for case, rate in measured.items()
    ]
    return report.Sheet(
        "Moves of gridworld_dqn's boards, the full network", ("what", "workers", "boards a worker", "moves/s"), rows, texts=1
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds that each case plays")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--write", type=Path, help="also put it into this file, between <!-- gridworld --> and <!-- /gridworld -->")
    options = parser.parse_args(arguments)
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count() or 0,
        "load_before": round(os.getloadavg()[0], 1),
    }
    os.environ |= ENVIRONMENT
    measured = {case: moves_a_second(case, options.seconds) for case in CASES}
    table = sheet(measured)
    if options.as_json:
        print(json.dumps([{**vars(case), "moves_per_second": round(rate)} for case, rate in measured.items()], indent=2))
    elif options.markdown:
        print(report.markdown([table], facts))
    else:
        report.show([table], facts, terminal=sys.stdout.isatty())
    if options.write:
        report.write(options.write, "gridworld", report.markdown([table], facts))


if __name__ == "__main__":
    main()
