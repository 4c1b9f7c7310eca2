"""The trainer on a GPU: placement, memory, mixed precision, and speed against loops written by hand. See gpu.sh.

    python -m benchmarks.gpu [--steps 10000] [--repeat 3] [--output gpu.json] [--write docs/performance.md]

The examples mnist and cifar10 run on the GPU, with strategies single, mirrored (on all there are) and parameter_server (a worker
for each), and must train; single and mirrored are looked at by placement.py in every precision; then `launcher up` and the loops
written by hand train the benchmark's MLP and cifar10's network in turn, and the rates are compared.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ours, report
from benchmarks.contenders import ROOT, Contender
from benchmarks.measuring import Figures, MeasurementError, measure, summarize
from benchmarks.run import machine
from trainer.child import library_path

AIM = 0.97
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
# Each with the accuracy that it must reach. In its 400 steps cifar10-ps learns less than the others, also on CPUs.
EXAMPLES = {
    "mnist-single": 0.95,
    "mnist-mirrored": 0.95,
    "mnist-ps": 0.95,
    "cifar10-single": 0.9,
    "cifar10-mirrored": 0.9,
    "cifar10-ps": 0.8,
}
GPU_CNN_BATCH = 128
AT_ONCE = 4  # checks that run in parallel: they measure no times, and none uses a whole GPU


@dataclass(frozen=True)
class Check:
    """A condition that must hold: its text, whether it holds, and the observation."""

    what: str
    holds: bool
    seen: str

    def __post_init__(self) -> None:
        """Show it at once: all of them take minutes."""
        print(f"{'holds' if self.holds else 'DOES NOT HOLD'}: {self.what}: {self.seen}", file=sys.stderr, flush=True)


def gpus() -> list[str]:
    """Return the names of the GPUs. Raises SystemExit if there is none."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"nvidia-smi shows no GPU here ({error}); run this on a machine with an NVIDIA GPU and its driver")
    return listed.splitlines()


def check_example(name: str, count: int) -> Check:
    """Run an example with the GPUs it fits, to its end; it must learn what its documentation says."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text(encoding="utf-8"))
    spec.setdefault("roles", {}).update(
        {
            "single": {"chief": {"gpus": 1}},
            "mirrored": {"chief": {"gpus": count}},
            "parameter_server": {"worker": {"gpus": 1, "replicas": count}},
        }[spec["strategy"]]
    )
    accuracies: list[float] = []

    def note(event: Mapping[str, Any]) -> None:
        if event["event"] == "done" and "accuracy" in event["metrics"]:
            accuracies.append(event["metrics"]["accuracy"])

    try:
        ours.run(spec, note)
    except SystemExit as error:
        return Check(f"examples/{name}.yaml", holds=False, seen=str(error.code))
    return Check(
        f"examples/{name}.yaml: accuracy of at least {EXAMPLES[name]:.0%}",
        holds=bool(accuracies) and accuracies[-1] >= EXAMPLES[name],
        seen=f"{accuracies[-1]:.2%}" if accuracies else "none",
    )


def check_placement(workload: str, strategy: str, precision: str) -> list[Check]:
    """Train a few steps and check where they ran, what memory they took and that the loss fell."""
    options = ["--workload", workload, "--strategy", strategy, "--precision", precision, "--steps", "30"]
    done = subprocess.run([sys.executable, "-m", "benchmarks.placement", *options], capture_output=True, text=True, cwd=ROOT, check=False)
    name = f"{workload}, {strategy}, {precision}"
    if done.returncode:
        return [Check(name, holds=False, seen=done.stderr[-500:])]
    found = json.loads(done.stdout)
    elsewhere = {operation: devices for operation, devices in found["operations"].items() if set(devices) != {"GPU"}}
    peak = found["memory"].get("peak", 0) / 1e6
    return [
        Check(
            f"{name}: matrices and convolutions on the GPU", bool(found["operations"]) and not elsewhere, json.dumps(found["operations"])
        ),
        Check(
            f"{name}: the loss falls", found["last_loss"] < found["first_loss"], f"{found['first_loss']:.3f} to {found['last_loss']:.3f}"
        ),
        Check(f"{name}: memory on the GPU is used", peak > 0, f"{peak:,.0f} MB at most"),
    ]


def check_gpus_found() -> Check:
    """Check that a program that the trainer starts finds a GPU; show how many it finds by itself, without `library_path`."""
    program = [sys.executable, "-c", "import tensorflow as tf; print('GPUs:', len(tf.config.list_physical_devices('GPU')))"]
    commands = ([sys.executable, "-m", "trainer", "--", *program], program)
    outputs = [subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout for command in commands]
    counts = [int(output.partition("GPUs: ")[2].split()[0]) if "GPUs: " in output else 0 for output in outputs]
    return Check("a program that the trainer starts finds GPUs", counts[0] > 0, f"{counts[0]}; started by itself {counts[1]}")


def check_memory_growth() -> Check:
    """Check, while the MLP trains, that a task takes only the GPU memory that it needs, on whichever GPU it is."""
    before = _memory_used()
    taken: list[int] = []

    def look(event: Mapping[str, Any]) -> None:
        if event["event"] in {"progress", "evaluated"}:
            taken.append(max(now - then for now, then in zip(_memory_used(), before, strict=True)))

    ours.run(_timed("mnist_mlp", "single", 2000, "float32", 1), look)
    most = max(taken, default=100)
    return Check("memory grows: a task of the MLP takes less than half of a GPU", holds=most < 50, seen=f"{most} % at most")


def _memory_used() -> list[int]:
    """Return the percentage of each GPU's memory that is in use."""
    query = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    return [100 * used // total for used, total in (map(int, line.split(",")) for line in lines)]


def _timed(workload: str, strategy: str, steps: int, precision: str, count: int) -> dict[str, object]:
    """Return a spec that trains on so many GPUs and does nothing else."""
    train = ours.MLP if workload == "mnist_mlp" else {"workload": workload, "batch_size": GPU_CNN_BATCH}
    alone = ours.spec(ours.Case("single", {**train, "precision": precision}), steps, 1, "float32")
    return {**alone, "strategy": strategy, "roles": {"chief": {"cpu": 1, "gpus": count}}}


def program_pairs(steps: int, count: int, precisions: Sequence[str]) -> list[tuple[Contender, Contender]]:
    """Return pairs of ours and the loop written by hand. The CNN, whose steps take longer, takes a fifth of them."""
    taken = {"mnist_mlp": steps, "cifar10": steps // 5}

    def ours_is(workload: str, strategy: str, precision: str) -> Contender:
        spec = json.dumps(_timed(workload, strategy, taken[workload], precision, count if strategy == "mirrored" else 1))
        command = (sys.executable, "-m", "benchmarks.ours", "--spec", spec)
        title = f"ours: {workload}, {strategy}, {precision}"
        return Contender(f"{workload}-{strategy}-{precision}", "gpu", title, command, taken[workload], max_loss_ratio=0.9)

    def by_hand(workload: str, precision: str) -> Contender:
        module = "benchmarks.handwritten" if workload == "mnist_mlp" else "benchmarks.handwritten_cnn"
        batch = () if workload == "mnist_mlp" else ("--batch", str(GPU_CNN_BATCH))
        command = (sys.executable, "-m", module, "--precision", precision, *batch)
        return Contender(
            f"{workload}-hand-{precision}", "gpu", f"by hand: {workload}, {precision}", command, taken[workload], max_loss_ratio=0.9
        )

    return [
        (ours_is(workload, strategy, precision), by_hand(workload, precision))
        for workload in ("mnist_mlp", "cifar10")
        for strategy in ("single", "mirrored")
        for precision in precisions
    ]


def speeds(steps: int, repeat: int, count: int, precisions: Sequence[str]) -> tuple[report.Sheet, dict[str, float]]:
    """Measure each pair; return the table, and all rates by the programs' names."""
    pairs = program_pairs(steps, count, precisions)
    found: dict[str, list[Figures]] = {}
    for _ in range(repeat):
        for contender in {c.name: c for pair in pairs for c in pair}.values():
            try:
                found.setdefault(contender.name, []).append(measure(contender, contender.steps))
                print(f"{contender.title}: {found[contender.name][-1].printed}", file=sys.stderr, flush=True)
            except MeasurementError as error:
                print(f"error: {error}", file=sys.stderr)
    rates = {name: summarize(figures).steps_per_second for name, figures in found.items() if figures}
    rows = [
        (mine.title, f"{rates[mine.name]:,.0f}", f"{rates[hand.name]:,.0f}", f"{rates[mine.name] / rates[hand.name]:.2f}", f"{AIM}")
        for mine, hand in pairs
        if mine.name in rates and hand.name in rates
    ]
    return report.Sheet("Steps a second on the GPU", ("program", "steps/s", "by hand", "ratio", "aim"), rows), rates


def main() -> int:
    """Do all of it; the exit code is 1 if a check does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="of each measurement, a fifth of them for the CNN")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each measurement")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="those to measure; all are checked")
    parser.add_argument("--output", type=Path, help="write all results to this file, as JSON")
    parser.add_argument("--write", type=Path, help="put the tables into this file, between <!-- gpu --> and <!-- /gpu -->")
    options = parser.parse_args()
    devices = gpus()
    facts = {**machine(), "gpu": "; ".join(devices)}
    seen = check_gpus_found()
    os.environ.update(library_path())  # as the trainer's parent does: for the loops written by hand
    trained = itertools.product(("mnist", "cifar10"), ("single", "mirrored"), PRECISIONS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        examples = pool.map(lambda name: check_example(name, len(devices)), EXAMPLES)
        placements = pool.map(lambda what: check_placement(*what), trained)
        checks = [seen, *examples, *itertools.chain.from_iterable(placements)]
    checks.append(check_memory_growth())
    speed, rates = speeds(options.steps, options.repeat, len(devices), options.precisions)
    held = report.Sheet("Checks", ("check", "holds", "seen"), [(c.what, "yes" if c.holds else "NO", c.seen) for c in checks], texts=3)
    report.show([held, speed], facts, terminal=sys.stdout.isatty())
    if options.output:
        everything = {"machine": facts, "checks": [vars(check) for check in checks], "steps_per_second": rates}
        options.output.write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")
    if options.write:
        report.write(options.write, "gpu", report.markdown([held, speed], facts))
    return int(not all(check.holds for check in checks))


if __name__ == "__main__":
    sys.exit(main())
