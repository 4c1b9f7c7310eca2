"""Trains a built-in workload for a few steps and reports on which devices its operations ran, from TensorFlow's log.

    python -m benchmarks.placement --workload cifar10 --strategy mirrored --precision mixed_bfloat16

Prints one JSON object: for each operation that computes, the number of placements by kind of device; on a GPU also the
memory used, which with memory growth is far from all of it; and the first and last losses.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

from benchmarks import ours, task

# Operations that take most of a step's time; those that feed it (gathers, shuffles) belong on the CPU.
OPERATIONS = ("MatMul", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "MaxPool", "MaxPoolGrad", "ResourceApplyAdam")
_PLACED = re.compile(r"\((\w+)\): \S*/device:(\w+):\d+")


def placed(log: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return how often each of OPERATIONS was placed on each kind of device (`CPU`, `GPU`), from what TensorFlow logs."""
    counts: dict[str, Counter[str]] = {}
    for line in log:
        for name, device in _PLACED.findall(line):
            if name in OPERATIONS:
                counts.setdefault(name, Counter())[device] += 1
    return {name: dict(devices) for name, devices in sorted(counts.items())}


def train(workload: str, strategy: str, precision: str, steps: int) -> dict[str, object]:
    """Train in this process, as the trainer does in a task of its own."""
    import tensorflow as tf

    tf.debugging.set_log_device_placement(True)
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.mirrored import MirroredSession, devices
    from trainer.engine.replicated import ReplicatedSession
    from trainer.workloads.loading import load_workload

    settings = {"workload": workload, "steps": steps, "precision": precision, "batch_size": 32}
    config = ours.config_of(settings, strategy, local_replicas=2)
    loaded = load_workload(config.train)
    session = MirroredSession(loaded, config, devices(2)) if strategy == "mirrored" else ReplicatedSession(loaded, config, AllReduce())
    session.begin_at(0)
    losses = [session.run(1).loss for _ in range(steps)]
    gpus = tf.config.list_logical_devices("GPU")
    memory = tf.config.experimental.get_memory_info("GPU:0") if gpus else {}
    return {"gpus": len(gpus), "memory": dict(memory), "first_loss": losses[0], "last_loss": losses[-1]}


def main() -> None:
    """Train in a process of its own, whose log has the placements of operations."""
    options = task.parse_arguments(__doc__, workload="mnist", strategy="single", precision="float32", here=0)
    if options.here:
        print(json.dumps(train(options.workload, options.strategy, options.precision, options.steps)), flush=True)
        os._exit(0)
    # As in a task's process, except for the log level, which hides placements there.
    environment = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true", "TF_CPP_MIN_LOG_LEVEL": "0", "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-m", "benchmarks.placement", *sys.argv[1:], "--here", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=task.DEADLINE)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    result = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({"operations": placed(lines), **result}), flush=True)


if __name__ == "__main__":
    main()
