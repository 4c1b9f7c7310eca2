"""Trains models whose embedding layers are spread over real ps and prints, as JSON, how that compares with one process that holds them whole.

Usage: drive_embeddings.py SCRATCH [lost], the latter for an export beside which a server is lost. It is a process of its own because a chief's connection is for the whole process.
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
# Sessions must not be torn down while their servers are gone: TensorFlow would complain of it.
alive: list[Any] = []

# Name -> the parameters of tests.trainer.engine.embedding_models. One worker equals one process where an unused row does not move, or none is unused.
CASES: dict[str, dict[str, Any]] = {
    "functional": {},
    "sequential": {},
    "preprocessed": {},
    "towers": {},
    "ragged": {},
    "alone": {},
    "frozen": {"optimizer": "Adagrad"},
    "adagrad from nothing": {"model": "few", "optimizer": "Adagrad", "arguments": {"initial_accumulator_value": 0.0}},
    "global clipnorm": {"model": "functional", "optimizer": "Adagrad", "arguments": {"global_clipnorm": 0.05}},
    "adamw, clipvalue": {"model": "few", "optimizer": "AdamW", "arguments": {"weight_decay": 0.1, "clipvalue": 0.001}},
}

# Cases whose steps are unrolled, as a small model's are: the loop is the same for each model, and an unrolled one starts later.
UNROLLED = ("functional", "global clipnorm")
assert set(UNROLLED) <= CASES.keys()


def main(scratch: str, part: str = "report") -> None:
    from tests.trainer.engine.servers_here import servers

    try:
        with servers(scratch, ps=4, workers=1) as here:
            connection = connected(here.tf_config)
            from tests.trainer.engine import drive_table_exports

            print(json.dumps((drive_table_exports.lost if part == "lost" else report)(here, Path(scratch), connection)), flush=True)
    except Exception:  # noqa: BLE001 - the test shows it; this process leaves as the trainer does
        traceback.print_exc()
    finally:
        os._exit(0)


def job_of(scratch: Path, params: dict[str, Any], **settings: Any) -> Any:
    from trainer.engine.job import job
    from trainer.settings import Train, TrainerSettings

    workload = f"tests.trainer.engine.embedding_models:{params['model']}"
    train = {"workload": workload, "params": params, "batch_size": 16, "steps": STEPS, "embeddings": {"min_rows": 1}, **settings}
    given = TrainerSettings(run="drive", run_dir=str(scratch), scratch_dir=str(scratch), train=Train.model_validate(train))
    return job(given)


def connected(tf_config: str) -> Any:
    """Return the chief's connection to its servers."""
    from trainer.task import importing_silently

    with importing_silently():  # as the trainer does: the garbage collector looks no further at what an import has made
        import keras  # noqa: F401
        import tensorflow  # noqa: F401, ICN001

    from trainer.engine.parameter_server.worker_pool import connect
    from trainer.tf_config import parse

    return connect(parse(tf_config))


def report(here: Any, scratch: Path, connection: Any) -> dict[str, Any]:
    from tests.trainer.engine.drive_table_exports import best, frozen, memory
    from trainer.engine.embeddings import server_rows, table_files

    found: dict[str, Any] = {"cases": {}}
    for name in CASES:
        found["cases"][name] = compared(name, scratch, connection)
    server_rows._BLOCK = 5 * 16
    table_files._FILE_BYTES = 200
    adam = job_of(scratch, {"model": "functional", "optimizer": "Adam"})
    one = trained(session(adam, connection))
    found["files"] = files(scratch, one, adam)
    found["full"] = full(scratch, one)
    found["outside"] = outside(job_of(scratch, {"model": "outside"}), connection)
    found["too large"] = too_large(job_of(scratch, {"model": "too_large"}), connection)
    found["start"] = start(scratch, connection)
    found["memory"] = memory(scratch, connection)
    found["best"] = best(scratch, connection)
    found["frozen"] = [frozen(scratch / str(held), connection, held=held) for held in (False, True)]
    found["looped"] = looped(scratch / "looped", connection)
    found["servers"] = taken_by_servers(here, scratch, connection)
    return found


@functools.cache
def few_operations() -> int:
    """Return how many operations a model has at most whose steps are unrolled, as it was before any case changed it."""
    from trainer.engine.parameter_server import asynchronous

    return asynchronous.FEW_OPERATIONS


def session(job: Any, connection: Any, *, unrolled: bool = False) -> Any:
    from trainer.engine.parameter_server import asynchronous
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.workloads.loading import load_workload

    few = few_operations()
    asynchronous.FEW_OPERATIONS = few if unrolled else 0
    made = AsynchronousSession(load_workload(job.train), job, connection, lambda: False)
    alive.append(made)
    return made


def trained(one: Any) -> Any:
    one.begin_at(0)
    while one.step < STEPS:
        one.run(STEPS // 2)
    one.fetch()
    one.close()
    return one


def rows_of(tables: Any) -> dict[str, Any]:
    """Return all rows by layer and slot."""
    import numpy as np

    rows: dict[str, Any] = {}
    for part in tables.parts():
        rows.setdefault(f"{part.table.name} {part.slot}".strip(), []).append(tables.read(part).numpy())
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def rows_here(local: Any) -> dict[str, Any]:
    """Return the same of a session that holds all rows itself."""
    rows: dict[str, Any] = {}
    for layer in local.tables._layers:
        slots = local.tables._rows[id(layer.embeddings.value)].slots
        rows |= {layer.name: layer.get_weights()[0], **{f"{layer.name} {slot}": variable.numpy() for slot, variable in slots.items()}}
    return rows


def compared(case: str, scratch: Path, connection: Any) -> dict[str, Any]:
    """Train a case spread and by Keras's own updates; return the largest difference of any weight, and which layers are spread."""
    from unittest.mock import patch

    import numpy as np
    import tensorflow as tf

    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.parameter_server import fused_updates
    from trainer.engine.replicated import LocalSession
    from trainer.workloads.loading import load_workload

    params = {"model": case, **CASES[case]}
    dense = job_of(scratch, params, embeddings=DENSE)
    one = LocalSession(load_workload(dense.train), dense, AllReduce())
    apply = fused_updates.apply
    # Of a row that a batch has twice Keras gets two gradients, and its optimizers square, and clip, each by itself.
    with patch.object(
        fused_updates, "apply", lambda optimizer, gradients, of: apply(optimizer, list(map(tf.convert_to_tensor, gradients)), of)
    ):
        whole = trained(one)
    spread = trained(session(job_of(scratch, params), connection, unrolled=case in UNROLLED))
    rows = rows_of(spread.tables)
    layers = {layer.name: layer for layer in whole.model._flatten_layers()}
    moved = [layer for name, layer in layers.items() if name in rows]
    differences = [np.max(np.abs(layer.get_weights()[0] - rows[layer.name])) for layer in moved]
    others = [v for v in whole.model.trainable_variables if not any(v is w for layer in moved for w in layer.weights)]
    differences += [np.max(np.abs(np.asarray(v) - np.asarray(w))) for v, w in zip(others, spread.model.trainable_variables, strict=True)]
    from tests.trainer.engine import embedding_models

    begun = [np.max(np.abs(embedding_models.start(*value.shape).value - value)) for name, value in rows.items() if name in layers]
    return {
        "difference": float(max(differences)),
        "moved": [float(one) for one in begun],
        "tables": sorted(table.name for table in spread.tables.all),
    }


def read_as_variables(path: str, rows: dict[str, Any]) -> bool:
    """Return whether a checkpoint has all of these rows as whole tensors."""
    import numpy as np
    import tensorflow as tf

    reader = tf.train.load_checkpoint(path)
    saved = [reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if key.endswith("VARIABLE_VALUE")]
    return all(any(np.array_equal(value, one) for one in saved) for value in rows.values())


def files(scratch: Path, one: Any, job: Any) -> dict[str, Any]:
    """Save the rows that a session has trained on four servers; return what reading them as one variable, in one process, and on two servers gives."""
    import numpy as np
    import tensorflow as tf

    from tests.trainer.engine.drive_table_exports import export
    from trainer.engine.checkpoints import Checkpoints
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.embeddings import layers
    from trainer.engine.embeddings.spread_tables import Tables
    from trainer.engine.model_ops import build, evaluator
    from trainer.engine.replicated import LocalSession
    from trainer.workloads.loading import load_workload

    path = Checkpoints(scratch / "checkpoints", one.model, one.optimizer, 3, one.tables.files()).save(STEPS)
    rows = rows_of(one.tables)
    whole = load_workload(job.train).model()
    tf.train.Checkpoint(model=whole).restore(path).expect_partial()
    of_layers = {layer.name: layer.get_weights()[0] for layer in whole.layers if isinstance(getattr(layer, "input_dim", None), int)}
    export(one, scratch, load_workload(job.train), whole)
    evaluators: dict[str, Any] = {
        "spread": evaluator(load_workload(job.train), one.model, 50, one.tables),
        "call by call": evaluator(load_workload(job.train), one.model, 50),
        "whole": evaluator(load_workload(job.train), whole, 50),
    }
    evaluated = {name: evaluate() for name, evaluate in evaluators.items()}
    look_ups = {name: [op.type for op in made._batch.graph.get_operations()].count("ResourceGather") for name, made in evaluators.items()}
    with layers.sharding(job.train.embeddings):
        built = build(load_workload(job.train), job)
    fewer = Tables(layers.tables(built.model), built.optimizer, job, 2, per_server=False)
    fewer.create()
    alive.append(fewer)
    restored = Checkpoints(scratch / "checkpoints", built.model, built.optimizer, 3, fewer.files()).restore(print)
    after = rows_of(fewer)
    local = LocalSession(load_workload(job.train), job, AllReduce())
    assert local.tables
    Checkpoints(scratch / "checkpoints", local.model, local.optimizer, 3, local.tables.files()).restore(print)
    alone = rows_here(local)
    local.begin_at(STEPS)
    local.run(STEPS)
    Checkpoints(scratch / "local", local.model, local.optimizer, 3, local.tables.files()).save(2 * STEPS)
    back = Checkpoints(scratch / "local", built.model, built.optimizer, 3, fewer.files()).restore(print)
    later, then = rows_here(local), rows_of(fewer)
    return {
        "in one process": all(np.array_equal(alone[name], value) for name, value in rows.items()) and len(rows),
        "back on servers": all(np.array_equal(then[name], value) for name, value in later.items()) and len(later),
        "moved in one process": min(float(np.max(np.abs(later[name] - value))) for name, value in rows.items()),
        "step there": back.step if back else None,
        "evaluated": evaluated,
        "look-ups": look_ups,
        "files": len(list((scratch / "checkpoints").iterdir())),
        "read as variables": read_as_variables(path, rows),
        "whole in one process": all(np.array_equal(value, rows[name]) for name, value in of_layers.items()) and len(of_layers),
        "on two servers": all(np.array_equal(after[name], value) for name, value in rows.items()) and len(rows),
        "step": restored.step if restored else None,
    }


def full(scratch: Path, one: Any) -> dict[str, Any]:
    """Save the rows of a session to a disk that gets full meanwhile, and to the same once it has room; return how that went."""
    from trainer.engine.checkpoints import Checkpoints, list_checkpoints

    disk = scratch / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=False).returncode:
        return {"skipped": "only root can mount a disk of the test's own"}
    try:
        checkpoints = Checkpoints(disk, one.model, one.optimizer, 3, one.tables.files())
        first = checkpoints.save(1)
        taken = sum(file.stat().st_size for file in disk.iterdir())
        read, filler = one.tables.read, disk / "filler"

        def fills(part: Any) -> Any:  # once some of the rows are on the disk
            if len(list(disk.glob("ckpt-2*"))) > 5 and not filler.exists():
                with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass
            return read(part)

        one.tables.read = fills
        error = ""
        try:
            checkpoints.save(2)
        except OSError as problem:
            error = str(problem.strerror)
        left = sorted(Path(path).name for path in list_checkpoints(disk))
        one.tables.read = read
        filler.unlink()
        again = checkpoints.save(3)
        rows = rows_of(one.tables)
        return {
            "error": error,
            "left": left,
            "kept": sorted(Path(path).name for path in list_checkpoints(disk)),
            "remains": sorted(file.name for file in disk.iterdir() if "ckpt-2" in file.name),
            "whole": all(read_as_variables(path, rows) for path in (first, again)),
            "bytes": taken,
        }
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def too_large(job: Any, connection: Any) -> str:
    from trainer.workloads.errors import WorkloadError

    try:
        session(job, connection).begin_at(0)
    except WorkloadError as error:
        return str(error)
    return ""


def outside(job: Any, connection: Any) -> str:
    from trainer.engine.embeddings.bad_ids import translate_bad_ids
    from trainer.workloads.errors import WorkloadError

    try:
        with translate_bad_ids(job):
            trained(session(job, connection))
    except WorkloadError as error:
        return str(error)
    return ""


def looped(scratch: Path, connection: Any) -> dict[str, dict[str, float]]:
    """Return what an evaluation is that cannot look up all rows at once, through the tables and with the layer whole."""
    from trainer.engine.model_ops import build, evaluator
    from trainer.workloads.loading import load_workload

    job, whole = job_of(scratch, {"model": "looped"}), job_of(scratch, {"model": "looped"}, embeddings=DENSE)
    one = session(job, connection)
    one.begin_at(0)
    here = load_workload(whole.train)
    found = {
        "spread": evaluator(load_workload(job.train), one.model, 50, one.tables)(),
        "whole": evaluator(here, build(here, whole).model, 50)(),
    }
    one.close()
    return found


def taken_by_servers(here: Any, scratch: Path, connection: Any) -> dict[str, int]:
    """Return the bytes of a table, and how many its servers take more than before once it is drawn; -1 where the system does not tell."""
    from trainer.engine.embeddings import server_rows

    server_rows._BLOCK = 2**20  # what a server's threads keep of blocks that they have freed is little

    def taken() -> int:
        files = [Path(f"/proc/{process.pid}/status") for name, process in here.processes.items() if name.startswith("ps-")]
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    seen = Path("/proc/self/status").exists()
    before = taken() if seen else 0
    one = session(job_of(scratch, {"model": "large", "rows": 4_000_000}), connection)
    one.begin_at(0)
    return {"bytes": one.tables.all[0].bytes, "taken": taken() - before if seen else -1}


def start(scratch: Path, connection: Any) -> dict[str, Any]:
    """Return, of tables as they are drawn, how their spread compares with Keras's, and whether a second draw of the same seed is the same."""
    import keras
    import numpy as np

    from trainer.engine.embeddings import server_rows

    server_rows._BLOCK = 8000  # a tenth of the table
    drawn = {}
    for name in ("uniform", "glorot_normal", "ones"):
        rows = []
        for _ in range(2 if name == "uniform" else 1):
            one = session(job_of(scratch, {"model": "drawn", "initializer": name}), connection)
            one.begin_at(0)
            rows.append(rows_of(one.tables)["drawn"])
        dense = np.asarray(keras.initializers.get(name)(rows[0].shape))
        drawn[name] = {
            "spread": float(np.abs(rows[0]).mean() / np.abs(dense).mean()),
            "again": all(np.array_equal(rows[0], other) for other in rows[1:]),
            "distinct": len(np.unique(rows[0])) / rows[0].size,
        }
    return drawn


if __name__ == "__main__":
    main(*sys.argv[1:])
