"""What `make bench` measures: every program, how it is started, and what ours is compared with."""

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEERS_PYTHON = ROOT / ".bench-venv/bin/python"


@dataclass(frozen=True)
class Contender:
    """One program: its name, what runs it, the steps of a full measurement, and the modules its interpreter needs."""

    name: str
    title: str
    command: tuple[str, ...]
    steps: int
    needs: tuple[str, ...] = ()  # in .bench-venv; none: it runs in .venv


@dataclass(frozen=True)
class Comparison:
    """Ours against a peer. `aim` is the least ratio of steps a second that we want."""

    ours: str
    peer: str
    aim: float | None = None


def _module(name: str, *options: str, python: str = sys.executable) -> tuple[str, ...]:
    return (python, "-m", f"benchmarks.{name}", *options)


def _torchx() -> tuple[str, ...]:
    script = str(ROOT / "benchmarks/torchx_ddp.py")
    return (
        str(PEERS_PYTHON.with_name("torchx")),
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


CONTENDERS = (
    Contender("single", "ours: single", _module("ours", "--strategy", "single"), 10_000),
    Contender("handwritten", "hand-written loop, tf.data", _module("handwritten", "--data", "pipeline"), 10_000),
    Contender("resident", "hand-written loop, data in the graph", _module("handwritten", "--data", "resident"), 10_000),
    Contender("ps", "ours: parameter_server, 1 ps + 2 workers", _module("ours", "--strategy", "parameter_server"), 4000),
    Contender("tf1", "TF1 between-graph, 1 ps + 2 workers", _module("tf1_ps"), 3000),
    Contender("allreduce", "ours: multi_worker_mirrored, 2 workers", _module("ours", "--strategy", "multi_worker_mirrored"), 4000),
    Contender("torchx", "TorchX + DDP (gloo), 2 workers", _torchx(), 3000, ("torch", "torchx")),
    Contender(
        "ray50", "Ray Train, 2 workers, 50 steps a call", _module("ray_train", "--calls", "50", python=str(PEERS_PYTHON)), 2000, ("ray",)
    ),
    Contender(
        "ray1", "Ray Train, 2 workers, 1 step a call", _module("ray_train", "--calls", "1", python=str(PEERS_PYTHON)), 1000, ("ray",)
    ),
)

COMPARISONS = (
    Comparison("single", "handwritten", 0.95),
    Comparison("single", "resident", 0.95),
    Comparison("ps", "tf1", 1.7),
    Comparison("allreduce", "torchx", 2.0),
    Comparison("allreduce", "ray1", 3.0),
    Comparison("allreduce", "ray50"),
)
