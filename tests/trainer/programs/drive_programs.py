"""Runs programs on three real workers and prints their results as JSON. Usage: drive_programs.py SCRATCH.

It is a process of its own because a chief's connection is for the whole process.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

WORKERS = 3
PATTERNS = {
    "block": ("x = 2, y = 2\n2o$2o!", 10, 10),
    "pulsar": (
        "x = 13, y = 13\n2b3o3b3o2$o4bobo4bo$o4bobo4bo$o4bobo4bo$2b3o3b3o2$2b3o3b3o$o4bobo4bo$o4bobo4bo$o4bobo4bo2$2b3o3b3o!",
        20,
        20,
    ),
    "glider": ("x = 3, y = 3\nbob$2bo$3o!", 9, 9),
    "nothing": ("x = 1, y = 1\nb!", 2, 5),
}
STRIP_GENERATIONS = 60


def main(scratch: Path) -> None:
    from tests.trainer.engine.servers_here import servers

    with servers(str(scratch), ps=0, workers=WORKERS) as cluster:
        try:
            print(json.dumps(report(cluster.tf_config, scratch)), flush=True)
        except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
            traceback.print_exc()
        finally:
            for process in cluster.processes.values():
                process.kill()
            os._exit(0)


def report(tf_config: str, scratch: Path) -> dict[str, Any]:
    from trainer.engine.manual import program
    from trainer.programs.cluster import Cluster
    from trainer.programs.device_log import DeviceLog
    from trainer.programs.program_loading import load_program
    from trainer.settings import Train
    from trainer.tf_config import parse

    sys.stdout.flush()
    stdout, sys.stdout = sys.stdout, sys.stderr  # tables go to stderr, only the report to stdout
    chief, *tasks = program._connect(parse(tf_config))
    results: dict[str, Any] = {"devices": {task.name: task.devices for task in (chief, *tasks)}}

    def run(workload: str, params: dict[str, Any], *, workers: int = WORKERS, seed: int = 0) -> dict[str, Any]:
        notices: list[str] = []
        log = DeviceLog()
        directory = scratch / "results"
        cluster = Cluster(chief, tuple(tasks[:workers]), directory, log, notices.append, lambda *_: None)
        received_before = _received()
        with log.watch():
            metrics = load_program(Train(workload=workload, params=params, seed=seed))(cluster)
        files = {path.name: path.read_text() for path in directory.glob("*.txt")} | {
            path.name: path.read_text() for path in directory.glob("*.rle")
        }
        outcome = {"metrics": metrics, "notices": notices, "rows": log.rows(), "elsewhere": log.misplaced(), "files": files}
        return outcome | {"received": _received() - received_before}

    results["placement"] = run("placement", {})
    results["placement_on_one"] = run("placement", {"x": 3.5}, workers=1)
    for slices in ("unequal", "speed"):
        results[f"map_reduce_{slices}"] = run("map_reduce", {"count": 10_000_000, "slices": slices})
    results["map_reduce_few"] = run("map_reduce", {"count": 2})
    results["matmul"] = run("matmul", {"size": 1500, "repeats": 3})
    results["matmul_fallback"] = run("matmul", {"size": 50, "devices": ["gpu:1", "worker-1", "worker-2/cpu:0", "worker-1/gpu:0"]})
    for name, (text, height, width) in PATTERNS.items():
        file = scratch / f"{name}.rle"
        file.write_text(text)
        results[f"life_{name}"] = run("life", {"pattern": str(file), "height": height, "width": width})
        (scratch / "results" / "life.gif").rename(scratch / f"{name}.gif")
    for workers in (1, 2, 3):
        results[f"strips_{workers}"] = run(
            "life", {"height": 13, "width": 17, "density": 0.4, "generations": STRIP_GENERATIONS, "frames": 0}, workers=workers, seed=5
        )
    results["unfinished"] = run("life", {"generations": 3, "frames": 0})
    sys.path.insert(0, str(scratch))
    (scratch / "documented.py").write_text((scratch / "example.txt").read_text())
    results["documented"] = run("documented:averages", {"count": 100_000})
    (scratch / "colocated.py").write_text(COLOCATED)
    results["colocated"] = run("colocated:add", {})
    (scratch / "together.py").write_text(TOGETHER)
    results["together"] = run("together:twice", {})
    sys.stdout = stdout
    return results


def _received() -> int:
    """Return the bytes that all processes have received over loopback: https://man7.org/linux/man-pages/man5/proc_pid_net.5.html."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[0])


# An operation runs where its variable is, even if another device is requested.
COLOCATED = """
import tensorflow as tf

def add(cluster):
    with tf.device(cluster.tasks[0].cpu):
        total = tf.Variable(1.0)
    with tf.device(cluster.tasks[1].cpu):
        total.assign_add(2.0)
    return {"total": float(total)}
"""

# A call runs on every task before the first one has ended.
TOGETHER = """
import time
import tensorflow as tf

@tf.function(autograph=False)
def powers(matrix):
    return tf.while_loop(lambda step, _: step < 200, lambda step, m: (step + 1, m @ m / 300.0), (0, matrix))[1]

def twice(cluster):
    for _ in range(2):  # the first call brings the function to each task
        start = time.perf_counter()
        products = cluster.each(lambda task: powers(tf.ones([300, 300])))
        started = time.perf_counter() - start
        for product in products:
            product.numpy()
    return {"part": started / (time.perf_counter() - start)}
"""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
