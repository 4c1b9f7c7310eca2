"""The programs of `make bench` with their commands, and the comparisons of ours with others."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
BASELINES_PYTHON = ROOT / ".bench-venv/bin/python"

# Values of --only beside the names of programs, and the subject of each group.
GROUPS = {
    "mlp": "Batch 100 a worker, MLP 784-100-10, one thread a process",
    "sync": "Synchronous updates on 1 ps from 2 workers: a step is a round of two gradients",
    "backup": "Synchronous updates on 1 ps from the first 3 of 4 workers, 50 ms of input delay a step: all alike, and one 10 times slower",
    "many": "160 small variables on 1 ps with 2 workers",
    "cnn": "The network of cifar10, batch 16, one process",
    "exchange": "The same all-reduce loop of 2 workers with a gradient of 318 kB and with one of 4 kB",
    "wire": "Gradients as float32 and as bfloat16 on the wire; accuracy on held-out digits after the same steps",
    "embedding": "8 ids an example of a table of 10^4 to 10^7 rows of 16 numbers, batch 256, Adagrad, 2 ps + 2 workers",
    "scaling": "1 to 16 workers, each step's computation replaced by a timed input delay of 50 ms",
}

WORKERS = (1, 2, 4, 8, 16)  # of the scaling group
TABLE_ROWS = {"1e4": 10**4, "1e5": 10**5, "1e6": 10**6, "1e7": 10**7}  # of the embedding group


@dataclass(frozen=True)
class Contender:
    """One program: its name, its group, what runs it, and the steps of a full measurement."""

    name: str
    group: str
    title: str
    command: tuple[str, ...]
    steps: int
    needs: tuple[str, ...] = ()  # modules of .bench-venv; if empty, it runs in .venv
    gradients: int = 1  # in a step
    max_loss_ratio: float = 0.5  # upper bound of the last loss, as a part of the first
    repeats: int = 100  # at most
    quick: bool = True  # whether --quick runs it without its name in --only


@dataclass(frozen=True)
class Comparison:
    """Ours against a baseline, by `of` a second. `aim` is the minimum ratio."""

    ours: str
    baseline: str
    aim: float | None = None
    of: Literal["steps", "gradients"] = "steps"


def _module(name: str, *options: str, python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-m", f"benchmarks.{name}", *options)


def _ours(name: str, group: str, title: str, steps: int, *options: str, gradients: int = 1) -> Contender:
    return Contender(name, group, title, _module("ours", *options), steps, gradients=gradients)


def _by_hand(name: str, title: str, calls: str) -> Contender:
    # Slow to start and to run: two repetitions suffice to show the range.
    command = _module("strategy_ps", "--calls", calls)
    return Contender(name, "many", f"ParameterServerStrategy by hand, {title}", command, 500, max_loss_ratio=0.75, repeats=2)


def _torchx() -> tuple[str, ...]:
    script = str(ROOT / "benchmarks/torchx_ddp.py")
    return (
        str(BASELINES_PYTHON.with_name("torchx")),
        "run",
        "--wait",
        "--log",
        "-s",
        "local_cwd",
        "dist.ddp",
        "-j",
        "1x2",
        "--script",
        script,
        "--",
    )


def _ray(calls: str) -> tuple[str, ...]:
    return _module("ray_train", "--calls", calls, python=str(BASELINES_PYTHON))


def _backup(name: str, title: str, case: str) -> Contender:
    command = _module("ours", "--case", case, "--workers", "4")
    return Contender(name, "backup", f"ours: parameter_server, 3 of 4 workers, {title}", command, 200, gradients=3, max_loss_ratio=0.97)


def _scaling(case: str, workers: int) -> Contender:
    kind, name = ("parameter_server", "ps") if case == "waiting_ps" else ("all-reduce", "allreduce")
    title = f"ours: {kind}, {workers} worker{'s' if workers > 1 else ''}, 50 ms a step"
    steps, gradients = (150 * workers, 1) if name == "ps" else (150, workers)
    command = _module("ours", "--case", case, "--workers", str(workers))
    # A run of 16 workers takes long to start; only the delay matters, so once is enough.
    return Contender(f"{name}-x{workers}", "scaling", title, command, steps, gradients=gradients, max_loss_ratio=0.97, repeats=1)


def _embedding(
    name: str, title: str, command: tuple[str, ...], steps: int, *, max_loss_ratio: float = 0.5, quick: bool = True, gradients: int = 1
) -> Contender:
    # Some take a minute and gigabytes of memory, and repetitions hardly differ.
    return Contender(
        f"embedding-{name}", "embedding", title, command, steps, max_loss_ratio=max_loss_ratio, repeats=1, quick=quick, gradients=gradients
    )


def _rows(name: str, rows: int) -> tuple[Contender, Contender]:
    quick = name in {"1e4", "1e6"}
    ours = _module("ours", "--case", f"rows_{rows}")
    tf1 = _module("tf1_rows", "--rows", str(rows))
    return (
        _embedding(f"ours-{name}", f"ours: parameter_server, {rows:,} rows", ours, 4000, quick=quick),
        _embedding(f"tf1-{name}", f"TF1 between-graph, {rows:,} rows in two parts", tf1, 2000, quick=quick),
    )


CONTENDERS = (
    _ours("single", "mlp", "ours: single", 10_000, "--case", "single"),
    Contender("handwritten", "mlp", "hand-written loop, tf.data", _module("handwritten", "--data", "pipeline"), 10_000),
    Contender("resident", "mlp", "hand-written loop, data in the graph", _module("handwritten", "--data", "resident"), 10_000),
    _ours("ps", "mlp", "ours: parameter_server, 1 ps + 2 workers", 4000, "--case", "ps"),
    Contender("tf1", "mlp", "TF1 between-graph, 1 ps + 2 workers", _module("tf1_ps"), 3000),
    _ours("allreduce", "mlp", "ours: multi_worker_mirrored, 2 workers", 4000, "--case", "allreduce", gradients=2),
    Contender("torchx", "mlp", "TorchX + DDP (gloo), 2 workers", _torchx(), 3000, ("torch", "torchx"), gradients=2),
    Contender("ray50", "mlp", "Ray Train, 2 workers, 50 steps a call", _ray("50"), 2000, ("ray",), gradients=2),
    Contender("ray1", "mlp", "Ray Train, 2 workers, 1 step a call", _ray("1"), 1000, ("ray",), gradients=2),
    _ours("sync-ours", "sync", "ours: parameter_server, synchronous, 2 of 2 workers", 2000, "--case", "sync", gradients=2),
    Contender("sync-tf1", "sync", "TF1 SyncReplicasOptimizer, 2 of 2 workers", _module("tf1_ps", "--sync", "1"), 1500, gradients=2),
    _backup("backup-one-slower", "one 10 times slower", "one_slower"),
    _backup("backup-alike", "all alike", "alike"),
    _ours("many-ours", "many", "ours: parameter_server, 160 variables", 2000, "--case", "many"),
    _by_hand("many-pss50", "50 steps a closure", "50"),
    _by_hand("many-pss1", "1 step a closure", "1"),
    Contender("cnn-ours", "cnn", "ours: single", _module("ours", "--case", "cnn"), 240, max_loss_ratio=0.98),
    Contender("cnn-handwritten", "cnn", "hand-written loop, tf.data", _module("handwritten_cnn"), 240, max_loss_ratio=0.98),
    Contender("whole", "exchange", "our all-reduce loop, gradient of 318 kB", _module("exchange"), 4000, gradients=2),
    Contender("slice", "exchange", "the same, gradient of 4 kB", _module("exchange", "--floats", "1000"), 4000, gradients=2),
    _ours("wire-ps", "wire", "ours: parameter_server, float32", 4000, "--case", "wire_ps"),
    _ours("wire-ps-bf16", "wire", "ours: parameter_server, bfloat16", 4000, "--case", "wire_ps", "--wire", "bfloat16"),
    _ours("wire-allreduce", "wire", "ours: multi_worker_mirrored, float32", 4000, "--case", "wire_allreduce", gradients=2),
    _ours(
        "wire-allreduce-bf16",
        "wire",
        "ours: multi_worker_mirrored, bfloat16",
        4000,
        "--case",
        "wire_allreduce",
        "--wire",
        "bfloat16",
        gradients=2,
    ),
    *(contender for name, rows in TABLE_ROWS.items() for contender in _rows(name, rows)),
    _embedding("pss", "ParameterServerStrategy by hand, 1,000,000 rows in two parts", _module("strategy_rows"), 1000),
    _embedding("fit", "Keras fit, one process, 1,000,000 rows", _module("keras_rows"), 160, max_loss_ratio=0.9),
    _embedding("single", "ours: single, 1,000,000 rows", _module("ours", "--case", "rows_single"), 4000),
    _embedding("allreduce", "ours: multi_worker_mirrored, 1,000,000 rows", _module("ours", "--case", "rows_allreduce"), 2000, gradients=2),
    _embedding(
        "whole",
        "ours: multi_worker_mirrored, 1,000,000 rows by Keras's update",
        _module("ours", "--case", "rows_whole"),
        160,
        max_loss_ratio=0.9,
    ),
    _embedding("sync", "ours: synchronous parameter_server, 1,000,000 rows", _module("ours", "--case", "rows_sync"), 1000, gradients=2),
    _embedding("1-table", "ours: parameter_server, 1,000,000 rows, 26 ids", _module("ours", "--case", "tables_1"), 2000),
    _embedding("26-tables", "ours: parameter_server, 26 tables, an id of each", _module("ours", "--case", "tables_26"), 2000),
    *(_scaling(case, workers) for case in ("waiting_ps", "waiting_allreduce") for workers in WORKERS),
)

COMPARISONS = (
    Comparison("single", "handwritten", 0.95),
    Comparison("single", "resident", 0.95),
    Comparison("ps", "tf1", 1.7),
    Comparison("allreduce", "torchx", 2.0),
    Comparison("allreduce", "ray1", 3.0),
    Comparison("allreduce", "ray50"),
    Comparison("sync-ours", "sync-tf1", 1.0),
    Comparison("backup-one-slower", "backup-alike", 0.91),  # a round at most 1.1 times as long
    Comparison("many-ours", "many-pss50", 1.0),
    Comparison("many-ours", "many-pss1"),
    Comparison("cnn-ours", "cnn-handwritten", 0.95),
    Comparison("whole", "slice", 0.9),
    Comparison("wire-ps-bf16", "wire-ps"),
    Comparison("wire-allreduce-bf16", "wire-allreduce"),
    *(Comparison(f"embedding-ours-{name}", f"embedding-tf1-{name}", 1.5) for name in TABLE_ROWS),
    Comparison("embedding-ours-1e6", "embedding-pss"),
    Comparison("embedding-ours-1e6", "embedding-fit"),
    Comparison("embedding-single", "embedding-fit", 4),
    Comparison("embedding-allreduce", "embedding-whole", 15),
    Comparison("embedding-ours-1e7", "embedding-ours-1e4", 0.9),
    Comparison("embedding-sync", "embedding-ours-1e6", 0.6, of="gradients"),
    Comparison("embedding-26-tables", "embedding-1-table", 0.8),
    *(
        Comparison(f"{kind}-x{workers}", f"{kind}-x1", 15.5 if workers == 16 else None, of="gradients")
        for kind in ("ps", "allreduce")
        for workers in WORKERS[1:]
    ),
)


def chosen(only: str) -> list[Contender]:
    """Return the programs that a comma-separated list names, by their own names or their group's; all for an empty one.

    Raises ValueError with the names that are neither.
    """
    wanted = set(filter(None, only.split(",")))
    names = {contender.name for contender in CONTENDERS}
    if unknown := wanted - names - GROUPS.keys():
        raise ValueError(
            f"--only: no program or group is called {', '.join(sorted(unknown))}; "
            f"there are the groups {', '.join(GROUPS)} and the programs {', '.join(sorted(names))}"
        )
    return [contender for contender in CONTENDERS if not wanted or contender.name in wanted or contender.group in wanted]
