"""Ray Train's TensorflowTrainer: 2 workers, MultiWorkerMirroredStrategy, Keras model and optimizer.

`--calls 50` runs 50 steps in one call of a tf.function, as our trainer does; `--calls 1` one, as Keras does by default.
"""

import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import task


def train(config: dict[str, Any]) -> None:
    """Train on one worker, in step with the other; the first writes the result to `config["result"]`."""
    # The start time of Ray, not of this worker.
    os.environ["BENCH_STARTED"] = config["started"]
    stopwatch = task.Stopwatch(config["steps"])
    import ray.train
    import tensorflow as tf

    # As in Ray's documentation: the strategy first, from the TF_CONFIG that Ray sets, then the model in its scope.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from benchmarks.handwritten import build

    with strategy.scope():
        model, optimizer = build()

    images, labels = task.training_set()
    batches = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images)).repeat()
    batches = batches.batch(task.BATCH * task.WORKERS, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    iterator = iter(strategy.experimental_distribute_dataset(batches.with_options(options)))

    def step(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            # The strategy sums the replicas' gradients.
            scaled = loss / task.WORKERS
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def call(steps: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(steps):
            loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=(next(iterator),)), axis=None)
        return loss

    done = 0
    while done < config["steps"]:
        count = 1 if done == 0 else min(config["calls"], config["steps"] - done)
        loss = float(call(tf.constant(count)))
        done += count
        stopwatch.mark(done, loss)
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["result"]).write_text(json.dumps(stopwatch.result()), encoding="utf-8")


def main() -> None:
    """Start Ray on this machine, train, and print the result."""
    options = task.parse_arguments(__doc__, calls=50)
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    with tempfile.TemporaryDirectory() as directory:
        ray.init(
            num_cpus=task.WORKERS,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            runtime_env={"env_vars": {"PYTHONPATH": str(Path.cwd())}},
        )
        result = Path(directory, "result.json")
        trainer = TensorflowTrainer(
            train,
            train_loop_config={
                "steps": options.steps,
                "calls": options.calls,
                "result": str(result),
                "started": os.environ.get("BENCH_STARTED", str(time.time())),
            },
            scaling_config=ScalingConfig(num_workers=task.WORKERS, use_gpu=False),
            run_config=RunConfig(storage_path=directory),
        )
        with contextlib.ExitStack() as stack:
            stack.callback(ray.shutdown)
            trainer.fit()
        print(result.read_text(encoding="utf-8"), flush=True)


if __name__ == "__main__":
    main()
