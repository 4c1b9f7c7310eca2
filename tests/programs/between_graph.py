"""A program of TensorFlow 1: every worker builds its own graph, variables are on the ps, which stays in `server.join()`.

Between-graph replication with `MonitoredTrainingSession` and `SyncReplicasOptimizer`, as TFJob's dist-mnist does it. Needs only TensorFlow.
In a cluster without a chief, worker-0 is the chief. It writes its checkpoints to RUN_DIR.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

STEPS = 30
BATCH = 32


def build(v1: Any, replicas: int) -> tuple[Any, Any, Any, Any]:
    """Return the global step, the loss, one training step, and the optimizer, of a line whose slope is 2."""
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH, 1)).astype(np.float32)
    step = v1.train.get_or_create_global_step()
    slope = v1.get_variable("slope", [], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean((slope * x - 2 * x) ** 2)
    optimizer = v1.train.SyncReplicasOptimizer(
        v1.train.GradientDescentOptimizer(0.2), replicas_to_aggregate=replicas, total_num_replicas=replicas
    )
    return step, loss, optimizer.minimize(loss, global_step=step), optimizer


def main() -> int:
    """Be the task that TF_CONFIG names."""
    config = json.loads(os.environ["TF_CONFIG"])
    role, index = config["task"]["type"], config["task"]["index"]
    v1 = tf.compat.v1
    cluster = v1.train.ClusterSpec(config["cluster"])
    server = v1.train.Server(cluster, job_name=role, task_index=index)
    if role == "ps":
        server.join()
    trains = [job for job in ("chief", "worker") if job in cluster.jobs]
    is_chief = role == trains[0] and index == 0
    replicas = sum(cluster.num_tasks(job) for job in trains)
    with v1.Graph().as_default():
        with v1.device(v1.train.replica_device_setter(worker_device=f"/job:{role}/task:{index}", cluster=cluster)):
            global_step, loss, train, optimizer = build(v1, replicas)
        hooks = [optimizer.make_session_run_hook(is_chief), v1.train.StopAtStepHook(last_step=STEPS)]
        directory = str(Path(os.environ["RUN_DIR"], "checkpoints")) if is_chief else None
        # TensorFlow does not end the thread that waits for the workers' gradients, and by default waits two minutes for it.
        session = v1.train.MonitoredTrainingSession(
            server.target, is_chief=is_chief, checkpoint_dir=directory, hooks=hooks, stop_grace_period_secs=1
        )
        with session:
            while not session.should_stop():
                step, value, _ = session.run([global_step, loss, train])
                print(f"{role}-{index}: step {step}, loss {value:.6f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
