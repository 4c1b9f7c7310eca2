"""Trains models whose embedding layers are spread over real ps; prints, as JSON, comparisons with one process that holds them whole.

Usage: drive_embeddings.py SCRATCH [lost]. With `lost` it only exports a model, and loses a server meanwhile. It is a process of its own because
a chief's connection is for the whole process.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

STEPS = 20
DENSE = {"min_rows": 10**9}
alive: list[Any] = []  # keeps the sessions: TensorFlow complains if one is destroyed after its servers

# Name -> the parameters of tests.trainer.engine.embedding_models. One worker equals one process only if unused rows do not move, or no row is unused.
CASES: dict[str, dict[str, Any]] = {
    "functional": {},
    "sequential": {},
    "preprocessed": {},
    "towers": {},
    "ragged": {},
    "alone": {},
    "frozen": {"optimizer": "Adagrad"},
    "adagrad from zero": {"model": "few", "optimizer": "Adagrad", "arguments": {"initial_accumulator_value": 0.0}},
    "global clipnorm": {"model": "functional", "optimizer": "Adagrad", "arguments": {"global_clipnorm": 0.05}},
    "adamw, clipvalue": {"model": "few", "optimizer": "AdamW", "arguments": {"weight_decay": 0.1, "clipvalue": 0.001}},
}

# Cases whose steps are unrolled, as a small model's are: the loop is the same for each model, and an unrolled one starts later.
UNROLLED = ("functional", "global clipnorm")
assert set(UNROLLED) <= CASES.keys()


def main(scratch: str, part: str = "report") -> None:
    from tests.trainer.engine.drivers import connect_to_servers
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=4, workers=1) as cluster:
            connection = connect_to_servers(cluster.tf_config)
            from tests.trainer.engine.drive_table_exports import lost_server

            print(json.dumps((lost_server if part == "lost" else report)(cluster, Path(scratch), connection)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def config_of(scratch: Path, params: dict[str, Any], **settings: Any) -> Any:
    from trainer.engine.train_config import train_config
    from trainer.settings import Train, TrainerSettings

    workload = f"tests.trainer.engine.embedding_models:{params['model']}"
    train = {"workload": workload, "params": params, "batch_size": 16, "steps": STEPS, "embeddings": {"min_rows": 1}, **settings}
    return train_config(TrainerSettings(run="drive", run_dir=str(scratch), scratch_dir=str(scratch), train=Train.model_validate(train)))


def report(cluster: Any, scratch: Path, connection: Any) -> dict[str, Any]:
    from tests.trainer.engine.drive_table_exports import best_models, exporter_memory, frozen_disk
    from trainer.engine.embeddings import server_rows, table_files

    results: dict[str, Any] = {"cases": {}}
    for name in CASES:
        results["cases"][name] = compare_with_dense(name, scratch, connection)
    server_rows._BLOCK = 5 * 16
    table_files._FILE_BYTES = 200
    adam = config_of(scratch, {"model": "functional", "optimizer": "Adam"})
    session = trained(new_session(adam, connection))
    results["files"] = checkpoint_files(scratch, session, adam)
    results["full"] = full_disk(scratch, session)
    results["not finite"] = {row: save_non_finite(scratch, session, row) for row in (0, 1)}
    results["outside"] = workload_error(config_of(scratch, {"model": "outside"}), connection)
    results["too large"] = workload_error(config_of(scratch, {"model": "too_large"}), connection)
    results["initial rows"] = initial_rows(scratch, connection)
    results["memory"] = exporter_memory(scratch, connection)
    results["best"] = best_models(scratch, connection)
    results["frozen"] = [frozen_disk(scratch / str(blocked), connection, blocked=blocked) for blocked in (False, True)]
    results["looped"] = looped_evaluation(scratch / "looped", connection)
    results["servers"] = server_memory(cluster, scratch, connection)
    return results


@functools.cache
def few_operations() -> int:
    """Return the largest number of operations with which a model's steps are unrolled, as it was before a case changed it."""
    from trainer.engine.parameter_server import asynchronous

    return asynchronous.FEW_OPERATIONS


def new_session(config: Any, connection: Any, *, unrolled: bool = False) -> Any:
    from trainer.engine.parameter_server import asynchronous
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.workloads.loading import load_workload

    unchanged = few_operations()  # before the next line changes it
    asynchronous.FEW_OPERATIONS = unchanged if unrolled else 0
    session = AsynchronousSession(load_workload(config.train), config, connection, lambda: False)
    alive.append(session)
    return session


def trained(session: Any) -> Any:
    """Train a session to its last step, close it, and return it."""
    session.begin_at(0)
    while session.step < STEPS:
        session.run(STEPS // 2)
    session.fetch()
    session.close()
    return session


def rows_of(tables: Any) -> dict[str, Any]:
    """Return all rows of sharded tables, by layer and slot."""
    import numpy as np

    rows: dict[str, Any] = {}
    for part in tables.row_ranges():
        rows.setdefault(f"{part.table.name} {part.slot}".strip(), []).append(tables.read(part).numpy())
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def local_rows(session: Any) -> dict[str, Any]:
    """Return all rows of a session that holds them in one process, by layer and slot."""
    rows: dict[str, Any] = {}
    for layer in session.tables._layers:
        slots = session.tables._rows[id(layer.embeddings.value)].slots
        rows |= {layer.name: layer.get_weights()[0], **{f"{layer.name} {slot}": variable.numpy() for slot, variable in slots.items()}}
    return rows


def compare_with_dense(case: str, scratch: Path, connection: Any) -> dict[str, Any]:
    """Train a case with sharded tables, and by Keras's own updates; return the largest difference of any weight, and the sharded tables."""
    from unittest.mock import patch

    import numpy as np
    import tensorflow as tf

    from tests.trainer.engine import embedding_models
    from trainer.engine import fused_updates
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.replicated import ReplicatedSession
    from trainer.workloads.loading import load_workload

    params = {"model": case, **CASES[case]}
    dense_config = config_of(scratch, params, embeddings=DENSE)
    dense = ReplicatedSession(load_workload(dense_config.train), dense_config, AllReduce())
    apply = fused_updates.apply

    def apply_dense(optimizer: Any, gradients: Any, variables: Any) -> None:
        # A row that is twice in a batch has two sparse gradients, which Keras's optimizers square and clip separately.
        apply(optimizer, list(map(tf.convert_to_tensor, gradients)), variables)

    with patch.object(fused_updates, "apply", apply_dense):
        trained(dense)
    spread = trained(new_session(config_of(scratch, params), connection, unrolled=case in UNROLLED))
    rows = rows_of(spread.tables)
    layers = {layer.name: layer for layer in dense.model._flatten_layers()}
    tables = [layer for name, layer in layers.items() if name in rows]
    differences = [np.max(np.abs(layer.get_weights()[0] - rows[layer.name])) for layer in tables]
    others = [v for v in dense.model.trainable_variables if not any(v is w for layer in tables for w in layer.weights)]
    differences += [np.max(np.abs(np.asarray(v) - np.asarray(w))) for v, w in zip(others, spread.model.trainable_variables, strict=True)]
    moved = [np.max(np.abs(embedding_models.start(*value.shape).value - value)) for name, value in rows.items() if name in layers]
    return {
        "difference": float(max(differences)),
        "moved": [float(distance) for distance in moved],
        "tables": sorted(table.name for table in spread.tables.all),
    }


def read_as_variables(path: str, rows: dict[str, Any]) -> bool:
    """Return whether a checkpoint has all of these rows as whole tensors."""
    import numpy as np
    import tensorflow as tf

    reader = tf.train.load_checkpoint(path)
    saved = [reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if key.endswith("VARIABLE_VALUE")]
    return all(any(np.array_equal(value, tensor) for tensor in saved) for value in rows.values())


def checkpoint_files(scratch: Path, session: Any, config: Any) -> dict[str, Any]:
    """Save a session's rows from four servers; return whether they are the same read as variables, in one process, and on two servers."""
    import numpy as np
    import tensorflow as tf

    from tests.trainer.engine.drive_table_exports import export
    from trainer.engine.checkpoints import Checkpoints
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.embeddings import layers
    from trainer.engine.embeddings.sharded_tables import Tables
    from trainer.engine.model_ops import build, evaluation
    from trainer.engine.replicated import ReplicatedSession
    from trainer.workloads.loading import load_workload

    path = Checkpoints(scratch / "checkpoints", session.model, session.optimizer, 3, session.tables.files()).save(STEPS)
    rows = rows_of(session.tables)
    whole_model = load_workload(config.train).model()
    tf.train.Checkpoint(model=whole_model).restore(path).expect_partial()
    layer_rows = {layer.name: layer.get_weights()[0] for layer in whole_model.layers if isinstance(getattr(layer, "input_dim", None), int)}
    export(session, scratch, load_workload(config.train), whole_model)
    evaluations: dict[str, Any] = {
        "spread": evaluation(load_workload(config.train), session.model, 50, session.tables),
        "call by call": evaluation(load_workload(config.train), session.model, 50),
        "whole": evaluation(load_workload(config.train), whole_model, 50),
    }
    evaluated = {name: evaluate() for name, evaluate in evaluations.items()}
    look_ups = {
        name: [op.type for op in evaluate._batch.graph.get_operations()].count("ResourceGather") for name, evaluate in evaluations.items()
    }
    with layers.sharding(config.train.embeddings):
        built = build(load_workload(config.train), config)
    on_two_servers = Tables(layers.tables(built.model), built.optimizer, config, 2, per_server=False)
    on_two_servers.create()
    alive.append(on_two_servers)
    restored = Checkpoints(scratch / "checkpoints", built.model, built.optimizer, 3, on_two_servers.files()).restore(print)
    restored_rows = rows_of(on_two_servers)
    local = ReplicatedSession(load_workload(config.train), config, AllReduce())
    assert local.tables
    Checkpoints(scratch / "checkpoints", local.model, local.optimizer, 3, local.tables.files()).restore(print)
    restored_locally = local_rows(local)
    local.begin_at(STEPS)
    local.run(STEPS)
    Checkpoints(scratch / "local", local.model, local.optimizer, 3, local.tables.files()).save(2 * STEPS)
    restored_again = Checkpoints(scratch / "local", built.model, built.optimizer, 3, on_two_servers.files()).restore(print)
    trained_locally, back_on_servers = local_rows(local), rows_of(on_two_servers)
    return {
        "in one process": all(np.array_equal(restored_locally[name], value) for name, value in rows.items()) and len(rows),
        "back on servers": all(np.array_equal(back_on_servers[name], value) for name, value in trained_locally.items())
        and len(trained_locally),
        "moved in one process": min(float(np.max(np.abs(trained_locally[name] - value))) for name, value in rows.items()),
        "step of one process": restored_again.step if restored_again else None,
        "evaluated": evaluated,
        "look-ups": look_ups,
        "files": len(list((scratch / "checkpoints").iterdir())),
        "read as variables": read_as_variables(path, rows),
        "whole in one process": all(np.array_equal(value, rows[name]) for name, value in layer_rows.items()) and len(layer_rows),
        "on two servers": all(np.array_equal(restored_rows[name], value) for name, value in rows.items()) and len(rows),
        "step": restored.step if restored else None,
    }


def full_disk(scratch: Path, session: Any) -> dict[str, Any]:
    """Save a session's rows to a disk that gets full meanwhile, and again once it has room; return the error and the checkpoints."""
    from trainer.engine.checkpoints import Checkpoints, list_checkpoints

    disk = scratch / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=False).returncode:
        return {"skipped": "only root can mount a disk"}
    try:
        checkpoints = Checkpoints(disk, session.model, session.optimizer, 3, session.tables.files())
        first = checkpoints.save(1)
        read, filler = session.tables.read, disk / "filler"

        def read_and_fill(part: Any) -> Any:  # fills the disk once some of the rows are on it
            if len(list(disk.glob("ckpt-2*"))) > 5 and not filler.exists():
                with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass
            return read(part)

        session.tables.read = read_and_fill
        error = ""
        try:
            checkpoints.save(2)
        except OSError as raised:
            error = str(raised.strerror)
        after_error = sorted(Path(path).name for path in list_checkpoints(disk))
        session.tables.read = read
        filler.unlink()
        third = checkpoints.save(3)
        rows = rows_of(session.tables)
        return {
            "error": error,
            "after the error": after_error,
            "at the end": sorted(Path(path).name for path in list_checkpoints(disk)),
            "partial files": sorted(file.name for file in disk.iterdir() if "ckpt-2" in file.name),
            "whole": all(read_as_variables(path, rows) for path in (first, third)),
        }
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def save_non_finite(scratch: Path, session: Any, row: int) -> tuple[str, list[str]]:
    """Save tables whose row of that number is nan; return the error and the checkpoints."""
    import numpy as np
    import tensorflow as tf

    from trainer.engine.checkpoints import Checkpoints, list_checkpoints
    from trainer.engine.embeddings.table_files import NonFiniteError

    directory, read, error = scratch / f"row {row}", session.tables.read, ""

    def read_non_finite(part: Any) -> Any:
        rows = read(part)
        return tf.tensor_scatter_nd_update(rows, [[row]], np.full((1, part.table.dimension), np.nan)) if part.first == 0 else rows

    session.tables.read = read_non_finite
    try:
        Checkpoints(directory, session.model, session.optimizer, 3, session.tables.files()).save(1)
    except NonFiniteError as raised:
        error = str(raised)
    finally:
        session.tables.read = read
    return error, list_checkpoints(directory)


def workload_error(config: Any, connection: Any) -> str:
    """Return the error with which a training ends."""
    from trainer.workloads.errors import WorkloadError

    try:
        session = new_session(config, connection)
        with session.tables.translate_errors(config):
            trained(session)
    except WorkloadError as error:
        return str(error)
    return ""


def looped_evaluation(scratch: Path, connection: Any) -> dict[str, dict[str, float]]:
    """Evaluate a model whose evaluation cannot look up all rows at once, through the sharded tables and with the whole layer."""
    from trainer.engine.model_ops import build, evaluation
    from trainer.workloads.loading import load_workload

    config, dense_config = config_of(scratch, {"model": "looped"}), config_of(scratch, {"model": "looped"}, embeddings=DENSE)
    session = new_session(config, connection)
    session.begin_at(0)
    workload = load_workload(dense_config.train)
    metrics = {
        "spread": evaluation(load_workload(config.train), session.model, 50, session.tables)(),
        "whole": evaluation(workload, build(workload, dense_config).model, 50)(),
    }
    session.close()
    return metrics


def server_memory(cluster: Any, scratch: Path, connection: Any) -> dict[str, int]:
    """Return the bytes of a table, and by how much its servers grow when it is drawn; -1 if the system does not show their memory."""
    from trainer.engine.embeddings import server_rows

    server_rows._BLOCK = 2**20  # small: a server's threads keep memory of the blocks that they have freed

    def resident_bytes() -> int:
        files = [Path(f"/proc/{process.pid}/status") for name, process in cluster.processes.items() if name.startswith("ps-")]
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    measurable = Path("/proc/self/status").exists()
    before = resident_bytes() if measurable else 0
    session = new_session(config_of(scratch, {"model": "large", "rows": 4_000_000}), connection)
    session.begin_at(0)
    return {"bytes": session.tables.all[0].bytes, "grown": resident_bytes() - before if measurable else -1}


def initial_rows(scratch: Path, connection: Any) -> dict[str, Any]:
    """Draw tables; return how their spread compares with Keras's, and whether a second draw with the same seed gives the same rows."""
    import keras
    import numpy as np

    from trainer.engine.embeddings import server_rows

    server_rows._BLOCK = 8000  # a tenth of the table
    drawn = {}
    for name in ("uniform", "glorot_normal", "ones"):
        rows = []
        for _ in range(2 if name == "uniform" else 1):
            session = new_session(config_of(scratch, {"model": "drawn", "initializer": name}), connection)
            session.begin_at(0)
            rows.append(rows_of(session.tables)["drawn"])
        dense = np.asarray(keras.initializers.get(name)(rows[0].shape))
        drawn[name] = {
            "spread": float(np.abs(rows[0]).mean() / np.abs(dense).mean()),
            "repeatable": all(np.array_equal(rows[0], other) for other in rows[1:]),
            "distinct": len(np.unique(rows[0])) / rows[0].size,
        }
    return drawn


if __name__ == "__main__":
    main(*sys.argv[1:])
