"""Trains with a callback that changes weights and rate, as one of two tasks of an all-reduce; prints the results as JSON.

Usage: drive_callbacks.py INDEX ADDRESS ADDRESS.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

_OPTIMIZER = "Adam"  # the same for every model of a process: the vectors of a collective must keep their size


def main(index: int, addresses: list[str]) -> None:
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    from tests.trainer.engine.drivers import import_frameworks, report_and_wait

    import_frameworks()
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.replicated import ReplicatedSession

    all_reduce = AllReduce(len(addresses), index)
    all_reduce.connect([f"worker-{i}" for i in range(len(addresses))], addresses)
    cases = {"epochs": False, "batches": True, "chief only": True if index == 0 else None}
    report = train_cases(lambda workload, config: ReplicatedSession(workload, config, all_reduce), cases, _OPTIMIZER)
    report["resumed"] = resume(lambda workload, config: ReplicatedSession(workload, config, all_reduce))
    report_and_wait(report)


def resume(create_session: Any) -> dict[str, Any]:
    """Return the results of two runs: one of 20 steps, and one of 10 that is resumed, with this task's own directory, until step 20."""
    from tests.trainer.engine.calling import SmallWithCallbacks, callback_config
    from tests.trainer.engine.test_loop import Output
    from trainer.engine import global_seed, loop
    from trainer.events import Reporter

    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, steps in (("whole", 20), ("halves", 10), ("halves", 20)):
            workload, output, run_dir = (
                SmallWithCallbacks(list, optimizer=_OPTIMIZER, dropout=True, unseeded=True),
                Output(),
                Path(directory, name),
            )
            config = callback_config(workload, run_dir, 2, steps=steps)
            session = create_session(workload, config)
            loop.run(session, workload, config, Reporter("task", output), lambda: False)
            global_seeds = global_seed.states(session.model)
            variables = [*session.model.variables, *session.optimizer.variables, *global_seeds]
            report[name] = {
                "step": session.step,
                "values": [float(variable.numpy().sum()) for variable in variables],
                "global seed": global_seeds[0].numpy().tolist(),
                "restored": [event["step"] for event in output.events("restored")],
                "stored": run_dir.exists(),
            }
    return report


def train_cases(create_session: Any, cases: dict[str, bool | None], optimizer: str = "SGD") -> dict[str, Any]:
    """Return the result of each case: True adds a callback for every batch to the one that changes weights, None means no callbacks."""
    import keras

    from tests.trainer.engine.calling import Changing, SmallWithCallbacks, callback_config, weight_sum
    from tests.trainer.engine.test_loop import Output
    from trainer.engine import loop
    from trainer.events import Reporter

    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, by_batch in cases.items():
            changing = Changing()
            callbacks: list[keras.callbacks.Callback] = [] if by_batch is None else [changing]
            callbacks += [keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: None)] if by_batch else []
            workload = SmallWithCallbacks(callbacks.copy, optimizer=optimizer, dropout=True)
            config = callback_config(workload, Path(directory, name), 2, epochs=10, batch_size=80)
            session = create_session(workload, config)
            outcome = loop.run(session, workload, config, Reporter("task", Output()), lambda: False)
            values = [v.value for v in session.model.trainable_variables]
            report[name] = {
                "step": session.step,
                "finished": outcome.finished,
                "rate": float(session.optimizer.learning_rate.numpy()),
                "sum": weight_sum(session.model),
                "replicas": [sum(float(r.numpy().sum()) for r in replicas) for replicas in zip(*map(replica_values, values), strict=True)],
                "weight sums": changing.weight_sums,
                "elements": sum(w.size for w in session.model.get_weights()),
            }
    return report


def replica_values(variable: Any) -> list[Any]:
    """Return a variable's value on each device."""
    return list(getattr(variable, "values", [variable]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
