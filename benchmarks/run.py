"""`make bench`: start every program in turn, never two at once, and compare steps a second and time to the first step.

    python -m benchmarks.run [--quick] [--json | --markdown] [--repeat 3] [--only single,handwritten] [--write docs/performance.md]

Repetitions are interleaved, so that a slow phase of the machine affects all programs; a figure is their median.
Each program computes with one thread a process, and its loss must have fallen.
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchmarks import report
from benchmarks.contenders import CONTENDERS, GROUPS, Contender, chosen
from benchmarks.measuring import Figures, Measured, MeasurementError, measure, missing, summarize

QUICK = 4  # --quick runs this part of the steps, once


def machine() -> dict[str, object]:
    """Return the facts about the machine and the versions on which the figures depend."""
    versions = {name: metadata.version(name) for name in ("tensorflow", "tensorflow-cpu", "keras", "numpy") if _installed(name)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "load_before": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _run(programs: Sequence[Contender], repeat: int, divisor: int) -> tuple[dict[str, Measured], bool]:
    """Run all programs `repeat` times with 1/`divisor` of their steps; return the measurements, and whether one failed."""
    repetitions: dict[str, list[Figures]] = {}
    failed = False
    for number in range(repeat):
        for contender in (c for c in programs if number < c.repeats):
            print(f"{number + 1}: {contender.name}: {contender.title} ...", file=sys.stderr, flush=True)
            try:
                figures = measure(contender, contender.steps // divisor)
            except MeasurementError as error:
                print(f"error: {error}", file=sys.stderr)
                failed = True
            else:
                repetitions.setdefault(contender.name, []).append(figures)
    return {c.name: summarize(repetitions[c.name], c.gradients) for c in programs if c.name in repetitions}, failed


def main() -> int:
    """Measure and print; the exit code is 1 if a program that could run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a quarter of the steps, once, with few of the sizes: shows that all of it works",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--write", type=Path, help="also put the tables into this file, between <!-- bench --> and <!-- /bench -->")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each program")
    names = ", ".join(contender.name for contender in CONTENDERS)
    parser.add_argument("--only", default="", help=f"names, separated by commas, of groups ({', '.join(GROUPS)}) or programs ({names})")
    options = parser.parse_args()
    try:
        wanted = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no program outlives this one
    facts = machine()
    programs = []
    for contender in (c for c in wanted if c.quick or not options.quick or c.name in options.only.split(",")):
        if why := missing(contender):
            print(f"left out: {contender.title}: {why}", file=sys.stderr)
        else:
            programs.append(contender)
    measured, failed = _run(programs, 1 if options.quick else options.repeat, QUICK if options.quick else 1)
    comparisons = report.compare(measured)
    tables = report.sheets(measured, comparisons)
    if options.as_json:
        rows = {name: asdict(row) for name, row in measured.items()}
        print(json.dumps({"machine": facts, "programs": rows, "comparisons": [asdict(line) for line in comparisons]}, indent=2))
    elif options.markdown:
        print(report.markdown(tables, facts))
    else:
        report.show(tables, facts, terminal=sys.stdout.isatty())
    if options.write:
        report.write(options.write, "bench", report.markdown(tables, facts))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
