"""Runs one program of the benchmark and reads its result; leaves no process behind."""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.contenders import BASELINES_PYTHON, ROOT, Contender
from benchmarks.memory import MemoryWatch, Peak
from benchmarks.task import DEADLINE

# The same for each program.
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
class Figures:
    """The outcome of one run: the line that the program printed, and the peak memory of its roles."""

    printed: Mapping[str, float]
    memory: Mapping[str, Peak] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """The median of a program's repetitions, and their range; of memory the maximum."""

    steps_per_second: float
    gradients_per_second: float
    slowest: float
    fastest: float
    seconds_to_first_step: float
    last_loss: float
    accuracy: float | None = None  # on the held-out set, at the end
    memory: Mapping[str, Peak] = field(default_factory=dict)


def measure(contender: Contender, steps: int) -> Figures:
    """Run one program once and return its figures.

    Raises MeasurementError with the end of its output if it fails, takes too long, or its loss has not fallen enough.
    """
    # A home of its own: Ray and Keras write into it.
    with tempfile.TemporaryDirectory() as home:
        path = (
            os.pathsep.join([str(BASELINES_PYTHON.parent), os.environ.get("PATH", "")]) if contender.needs else os.environ.get("PATH", "")
        )
        started = str(time.time())
        environment = {**os.environ, **ENVIRONMENT, "HOME": home, "PATH": path, "BENCH_STARTED": started}
        watch = MemoryWatch(f"BENCH_STARTED={started}")
        watch.start()
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
            memory = watch.stop()
    # TorchX puts the task's name before the line.
    lines = [line[line.index("{") :] for line in output.splitlines() if '{"steps_per_second"' in line]
    if process.returncode or not lines:
        end = "\n".join(output.splitlines()[-15:])
        raise MeasurementError(f"{contender.title} ended with exit code {process.returncode} and this output:\n{end}")
    printed: dict[str, float] = json.loads(lines[-1])
    if not printed["last_loss"] < printed["first_loss"] * contender.max_loss_ratio:
        raise MeasurementError(f"{contender.title} did not train: its loss went from {printed['first_loss']} to {printed['last_loss']}")
    return Figures(printed, memory)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill all processes of a program, which are a session of their own."""
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
        done = subprocess.run(
            [str(BASELINES_PYTHON), "-c", probe, *contender.needs], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError):
        return f"{BASELINES_PYTHON.parents[1].name} does not exist; run make bench, which creates it"
    return f"not installed: {done.stdout.strip()}" if done.stdout.strip() else ""


def summarize(repetitions: Sequence[Figures], gradients: int = 1) -> Measured:
    """Return medians and spread of one program's repetitions; a step of it has so many gradients."""
    rates = [figures.printed["steps_per_second"] for figures in repetitions]
    accuracies = [figures.printed["accuracy"] for figures in repetitions if "accuracy" in figures.printed]
    roles = sorted({role for figures in repetitions for role in figures.memory})
    return Measured(
        steps_per_second=statistics.median(rates),
        gradients_per_second=statistics.median(rates) * gradients,
        slowest=min(rates),
        fastest=max(rates),
        seconds_to_first_step=statistics.median(figures.printed["seconds_to_first_step"] for figures in repetitions),
        last_loss=statistics.median(figures.printed["last_loss"] for figures in repetitions),
        accuracy=statistics.median(accuracies) if accuracies else None,
        memory={role: max((f.memory[role] for f in repetitions if role in f.memory), key=lambda p: p.resident) for role in roles},
    )
