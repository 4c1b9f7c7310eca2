"""Our side of the benchmark: `launcher up` on a spec, timed from outside by the progress events it prints.

Steps count as in the baselines: of all workers together on parameter_server, of each worker for an all-reduce, and rounds where
updates are synchronous. `--case` names a row of CASES; `--spec` gives a whole spec instead, as JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import task
from benchmarks.contenders import TABLE_ROWS
from trainer import events

MLP: dict[str, Any] = {
    "workload": "mnist_mlp",
    "batch_size": task.BATCH,
    "params": {"hidden_units": task.HIDDEN, "learning_rate": task.LEARNING_RATE},
}
MANY: dict[str, Any] = {"workload": "benchmarks.workloads:Many", "batch_size": task.BATCH}
CNN: dict[str, Any] = {"workload": "cifar10", "batch_size": task.CNN_BATCH}
# At the usual rate of 0.01, so small a model does not learn from gradients that are 16 steps old.
WAITING: dict[str, Any] = {
    "workload": "benchmarks.workloads:Waiting",
    "batch_size": 10,
    "params": {"hidden_units": 10, "learning_rate": 0.002},
}
# Three gradients of four workers make a step.
BACKED_UP: dict[str, Any] = {**WAITING, "sync": {"replicas_to_aggregate": 3}}
# At its usual rate of 0.01 the accuracy varies by more than the wire's effect. The published digits, if MNIST_DIR is set.
WIRE: dict[str, Any] = {
    **MLP,
    "params": {"hidden_units": task.HIDDEN, "learning_rate": 0.003},
    "data": str(Path(os.environ["MNIST_DIR"]).resolve()) if os.environ.get("MNIST_DIR") else "synthetic",
}


# Tables are updated by rows, whatever their size.
EMBEDDING: dict[str, Any] = {"workload": "benchmarks.rows:Rows", "batch_size": 256, "embeddings": {"min_rows": 1}}


@dataclass(frozen=True)
class Case:
    """The part of a spec that a case varies."""

    strategy: str
    train: Mapping[str, Any] = field(default_factory=lambda: MLP)
    servers: int = 1


def _rows(rows: int, *, sync: bool = False, **params: int) -> Case:
    together = {"sync": {"replicas_to_aggregate": task.WORKERS}} if sync else {}
    return Case("parameter_server", {**EMBEDDING, "params": {"rows": rows, **params}, **together}, servers=2)


CASES = {
    "single": Case("single"),
    "ps": Case("parameter_server"),
    "allreduce": Case("multi_worker_mirrored"),
    "sync": Case("parameter_server", {**MLP, "sync": {"replicas_to_aggregate": task.WORKERS}}),
    "many": Case("parameter_server", MANY),
    "cnn": Case("single", CNN),
    "waiting_ps": Case("parameter_server", WAITING),
    "waiting_allreduce": Case("multi_worker_mirrored", WAITING),
    "alike": Case("parameter_server", BACKED_UP),
    "one_slower": Case("parameter_server", {**BACKED_UP, "workload": "benchmarks.workloads:OneSlower"}),
    "wire_ps": Case("parameter_server", WIRE),
    "wire_allreduce": Case("multi_worker_mirrored", WIRE),
    **{f"rows_{rows}": _rows(rows) for rows in TABLE_ROWS.values()},
    "rows_sync": _rows(10**6, sync=True),
    "rows_single": Case("single", {**EMBEDDING, "params": {"rows": 10**6}}),
    "rows_allreduce": Case("multi_worker_mirrored", {**EMBEDDING, "params": {"rows": 10**6}}),
    "rows_whole": Case("multi_worker_mirrored", {**EMBEDDING, "params": {"rows": 10**6}, "embeddings": {"min_rows": 10**9}}),
    "tables_1": _rows(10**6, ids=26),
    "tables_26": _rows(10**6, ids=26, tables=26),
}

# One core a task, as the baselines' environment has it. The chief of an all-reduce trains, too.
ROLES: dict[str, Callable[[int], dict[str, dict[str, int]]]] = {
    "single": lambda _: {"chief": {"cpu": 1}},
    "multi_worker_mirrored": lambda workers: {"chief": {"cpu": 1}, "worker": {"cpu": 1, "replicas": workers - 1}},
    "parameter_server": lambda workers: {"chief": {"cpu": 1}, "ps": {"cpu": 1}, "worker": {"cpu": 1, "replicas": workers}},
}


def spec(case: Case, steps: int, workers: int, wire: str) -> dict[str, object]:
    """Return a spec that trains and does nothing else before its end: the baselines neither save nor evaluate, nor export."""
    # An all-reduce of one worker is strategy single.
    strategy = "single" if case.strategy == "multi_worker_mirrored" and workers == 1 else case.strategy
    roles = ROLES[strategy](workers)
    if "ps" in roles:
        roles["ps"]["replicas"] = case.servers
    return {
        "version": 1,
        "name": f"bench-{strategy.replace('_', '-')}",
        "strategy": strategy,
        "roles": roles,
        "train": {
            **case.train,
            "steps": steps,
            "gradients": {"wire": wire},
            "checkpoint": {"every_seconds": 3600.0},
            "evaluate": {"every_steps": 0},
            "export": {"formats": []},
            "summaries": {"every_steps": 0, "profile_every_steps": 0},
        },
    }


def config_of(train: Mapping[str, object], strategy: str, **more: object) -> Any:
    """Return the trainer's configuration for a session in this process, which writes nothing."""
    from trainer.engine.train_config import train_config
    from trainer.settings import TrainerSettings

    settings = {"run": "bench", "strategy": strategy, "run_dir": "unused", "scratch_dir": "unused", "train": train, **more}
    return train_config(TrainerSettings.model_validate(settings))


def run(spec: Mapping[str, object], on_event: Callable[[events.Event], None], on_output: Callable[[str], None] = lambda _: None) -> None:
    """Run a spec with `launcher up` in a directory of its own; pass on each event of its tasks, and each other line of JSON.

    Raises SystemExit with the cause if a task fails or is restarted: such a run is no measurement.
    """
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "spec.yaml")
        file.write_text(json.dumps(spec), encoding="utf-8")
        command = [sys.executable, "-m", "launcher", "up", str(file), "--json", "--runs", f"{directory}/runs"]
        launcher = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
        with launcher:
            for line in launcher.stdout or ():
                event = events.parse(line)
                if event is None:
                    on_output(line)
                    continue
                on_event(event)
                if event["event"] in {"failed", "restarting"}:
                    failures.append(f"{event['task']} {event['event']}: {event['cause']}: {event.get('detail', '')}")
        if launcher.returncode or failures:
            sys.exit("\n".join([*failures, f"launcher up ended with exit code {launcher.returncode}"]))


def main() -> None:
    """Run one case and print the result."""
    options = task.parse_arguments(__doc__, case="single", workers=task.WORKERS, wire="float32", spec="")
    stopwatch = task.Stopwatch(options.steps)
    accuracies: list[float] = []

    def note(event: events.Event) -> None:
        if event["event"] == "progress" and "local_step" not in event:
            stopwatch.mark(event["step"], event["loss"], event["time"])
        elif event["event"] == "done" and "accuracy" in event["metrics"]:
            accuracies.append(event["metrics"]["accuracy"])

    run(json.loads(options.spec) if options.spec else spec(CASES[options.case], options.steps, options.workers, options.wire), note)
    stopwatch.print(accuracy=accuracies[-1] if accuracies else None)


if __name__ == "__main__":
    main()
