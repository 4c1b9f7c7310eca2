"""`make bench`: start every program in turn, never two at once, and compare steps a second and time to the first step.

    python -m benchmarks.run [--quick] [--json] [--repeat 3] [--only single,handwritten]

Repetitions are interleaved, so that a machine that slows down slows all alike; a figure is their median.
Each program computes with one thread a process, and its loss must have fallen.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import COMPARISONS, CONTENDERS, PEERS_PYTHON, ROOT, Contender

DEADLINE = 300  # seconds for one program
BUSY = 0.5  # load average above which figures mean little
QUICK = 4  # --quick runs this part of the steps, once
# The same for every program.
ENVIRONMENT = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONPATH": str(ROOT),
    # Ray gives its workers a lower priority than everything else on the machine; the others run at the usual one.
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class MeasurementError(Exception):
    """A program did not run to its end, or did not train."""


@dataclass(frozen=True)
class Measured:
    """The median of a program's repetitions, and how far they were apart."""

    steps_per_second: float
    slowest: float
    fastest: float
    seconds_to_first_step: float
    last_loss: float


def measure(contender: Contender, steps: int) -> dict[str, float]:
    """Run one program once and return the figures of the line it prints.

    Raises MeasurementError with the end of its output if it fails, takes too long, or its loss has not halved.
    """
    # A home of its own: Ray and Keras write into it.
    with tempfile.TemporaryDirectory() as home:
        path = os.pathsep.join([str(PEERS_PYTHON.parent), os.environ.get("PATH", "")]) if contender.needs else os.environ.get("PATH", "")
        environment = {**os.environ, **ENVIRONMENT, "HOME": home, "PATH": path, "BENCH_STARTED": str(time.time())}
        process = subprocess.Popen(
            [*contender.command, "--steps", str(steps)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"{contender.title} took longer than {DEADLINE} s") from None
        finally:
            _end(process)
    # TorchX puts the task's name before the line.
    lines = [line[line.index("{") :] for line in output.splitlines() if '{"steps_per_second"' in line]
    if process.returncode or not lines:
        end = "\n".join(output.splitlines()[-15:])
        raise MeasurementError(f"{contender.title} ended with exit code {process.returncode} and this output:\n{end}")
    figures: dict[str, float] = json.loads(lines[-1])
    if not figures["last_loss"] < figures["first_loss"] / 2:
        raise MeasurementError(f"{contender.title} did not train: its loss went from {figures['first_loss']} to {figures['last_loss']}")
    return figures


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of a program behind; its processes are a session of their own."""
    try:
        os.killpg(process.pid, signal.SIGTERM if process.poll() is None else signal.SIGKILL)
        process.wait(20)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def missing(contender: Contender) -> str:
    """Return why a program cannot run here, or nothing."""
    if not contender.needs:
        return ""
    probe = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    try:
        done = subprocess.run([str(PEERS_PYTHON), "-c", probe, *contender.needs], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        return f"{PEERS_PYTHON.parents[1].name} is not there; make bench makes it"
    return f"not installed: {done.stdout.strip()}" if done.stdout.strip() else ""


def summarize(repetitions: Sequence[Mapping[str, float]]) -> Measured:
    """Return medians and spread of one program's repetitions."""
    rates = [figures["steps_per_second"] for figures in repetitions]
    return Measured(
        steps_per_second=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        seconds_to_first_step=statistics.median(figures["seconds_to_first_step"] for figures in repetitions),
        last_loss=statistics.median(figures["last_loss"] for figures in repetitions),
    )


def compare(measured: Mapping[str, Measured]) -> list[dict[str, object]]:
    """Return ours against each peer that was measured: ratios above 1 are in our favour."""
    rows: list[dict[str, object]] = []
    for comparison in COMPARISONS:
        ours, peer = measured.get(comparison.ours), measured.get(comparison.peer)
        if ours and peer:
            rate = ours.steps_per_second / peer.steps_per_second
            first = peer.seconds_to_first_step / ours.seconds_to_first_step
            rows.append({**asdict(comparison), "speed_ratio": round(rate, 2), "first_step_ratio": round(first, 2)})
    return rows


def machine() -> dict[str, object]:
    """Return what the figures depend on."""
    versions = {name: metadata.version(name) for name in ("tensorflow", "tensorflow-cpu", "keras", "numpy") if _installed(name)}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **versions,
    }


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def show(facts: Mapping[str, object], measured: Mapping[str, Measured], comparisons: Sequence[Mapping[str, object]]) -> None:
    """Print two tables: what was measured, and ours against each peer."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    titles = {contender.name: contender.title for contender in CONTENDERS}
    table = Table(title="Batch 100 a worker, MLP 784-100-10, one thread a process")
    for column in ("program", "steps/s", "slowest-fastest", "first step, s", "last loss"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for name, row in measured.items():
        spread = f"{row.slowest:,.0f}-{row.fastest:,.0f}"
        table.add_row(titles[name], f"{row.steps_per_second:,.0f}", spread, f"{row.seconds_to_first_step:.1f}", f"{row.last_loss:.4f}")
    console.print(table)
    ratios = Table(title="Ours against each peer; above 1 is in our favour")
    for column in ("ours", "peer", "steps/s", "aim", "first step"):
        ratios.add_column(column, justify="left" if column in {"ours", "peer"} else "right")
    for line in comparisons:
        aim = f"{line['aim']}" if line["aim"] else ""
        ratios.add_row(titles[str(line["ours"])], titles[str(line["peer"])], f"{line['speed_ratio']}x", aim, f"{line['first_step_ratio']}x")
    console.print(ratios)
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if float(str(facts["load_before"])) > BUSY:
        console.print(f"The machine was busy when this began (load {facts['load_before']}): the figures are not to be relied on.")


def main() -> int:
    """Measure and print; the exit code is 1 if a program that could run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the steps, once: shows that all of it works")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print one JSON object")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each program")
    parser.add_argument("--only", default="", help=f"names, separated by commas: {','.join(c.name for c in CONTENDERS)}")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    if unknown := wanted - {contender.name for contender in CONTENDERS}:
        parser.error(f"--only: no program is called {', '.join(sorted(unknown))}")
    facts = machine()
    chosen, failed = [], False
    for contender in (c for c in CONTENDERS if not wanted or c.name in wanted):
        if why := missing(contender):
            print(f"left out: {contender.title}: {why}", file=sys.stderr)
        else:
            chosen.append(contender)
    repetitions: dict[str, list[dict[str, float]]] = {}
    for number in range(1 if options.quick else options.repeat):
        for contender in chosen:
            print(f"{number + 1}: {contender.title} ...", file=sys.stderr, flush=True)
            try:
                figures = measure(contender, contender.steps // (QUICK if options.quick else 1))
            except MeasurementError as error:
                print(f"error: {error}", file=sys.stderr)
                failed = True
            else:
                repetitions.setdefault(contender.name, []).append(figures)
    measured = {name: summarize(figures) for name, figures in repetitions.items()}
    comparisons = compare(measured)
    if options.as_json:
        programs = {name: asdict(row) for name, row in measured.items()}
        print(json.dumps({"machine": facts, "programs": programs, "comparisons": comparisons}, indent=2))
    else:
        show(facts, measured, comparisons)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
