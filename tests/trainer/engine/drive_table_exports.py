"""The part of drive_embeddings that exports models: during training, too soon after one another, to a frozen disk, and with a ps that is lost."""

import io
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

from tests.trainer.engine.drive_embeddings import config_of, new_session


def export(session: Any, scratch: Path, workload: Any, whole_model: Any) -> None:
    """Export a session's model as `saved_model`; write inputs and the outputs of `whole_model` for them to `expected.npz`."""
    import numpy as np

    from trainer.engine.embeddings.exported_tables import ExportedModel

    exported = ExportedModel(session.model, session.tables)
    exported.write(scratch)
    exported.discard()
    inputs, _ = next(iter(workload.eval_data(32)))
    np.savez(scratch / "expected.npz", outputs=whole_model(inputs), **{name: value.numpy() for name, value in inputs.items()})


def exporter_memory(scratch: Path, connection: Any) -> dict[str, int]:
    """Return the bytes of a table, and by how much this process grows at most while it exports it; 0 if the system does not show that."""
    from trainer.engine.embeddings import exported_tables, server_rows, table_files

    exported_tables._READ, table_files._FILE_BYTES, server_rows._BLOCK = 2**19, 2**20, 2**24
    session = new_session(config_of(scratch, {"model": "large"}), connection)
    session.begin_at(0)
    status, clear_refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def memory(name: str) -> int:
        lines = status.read_text().splitlines() if clear_refs.exists() else []
        return sum(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    before = 0
    for name in ("first", "second"):  # TensorFlow allocates memory for all exports in the first one
        if clear_refs.exists():
            clear_refs.write_text("5")  # resets the peak
        before = memory("VmRSS")
        exported = exported_tables.ExportedModel(session.model, session.tables)
        (scratch / name).mkdir()
        exported.write(scratch / name)
        exported.discard()
        assert sum(file.stat().st_size for file in (scratch / name).rglob("*")) > session.tables.all[0].bytes
    return {"bytes": session.tables.all[0].bytes, "grown": memory("VmHWM") - before}


def best_models(scratch: Path, connection: Any) -> list[Any]:
    """Offer models, some of them too soon; return what the files hold after each, and the reported events."""
    import numpy as np
    import tensorflow as tf

    from trainer.engine import export
    from trainer.engine.embeddings import exported_tables
    from trainer.events import Reporter
    from trainer.settings import Export

    session = new_session(config_of(scratch, {"model": "outside"}), connection)
    session.begin_at(0)
    link, output = scratch / "export" / "best", io.StringIO()
    exports: list[Any] = []

    def new_exporter(share: float) -> Any:
        names = ("loss", "accuracy")
        return export.BestModel(Export(), scratch, names, session.model, Reporter("chief", output), share=share, tables=session.tables)

    def read_export() -> None:
        facts, served = json.loads((link / "metrics.json").read_text()), tf.saved_model.load(str(link / "saved_model"))
        rows = next(v for v in served._all_variables if v.shape == [10, 4])
        exports.append([facts["step"], facts["value"], facts["formats"], sorted(float(x) for x in np.unique(rows))])

    def offer(exporter: Any, step: int, accuracy: float, seconds: float = 60) -> None:
        for part in session.tables.row_ranges():
            if not part.slot:
                session.tables.write(part, tf.fill([part.count, part.table.dimension], float(step)))
        exporter.offer(step, {"loss": 1.0, "accuracy": accuracy}, session.model.weights)
        exporter.wait(seconds)
        read_export()

    rare = new_exporter(1e-6)
    for step, accuracy in ((10, 0.5), (20, 0.7), (30, 0.6)):
        offer(rare, step, accuracy)  # the second and the third come too soon
    rare.finish(lambda: math.inf, 31, finished=True)  # training has continued past the model's step
    read_export()
    rare.finish(lambda: math.inf, 30, finished=True)
    read_export()
    often = new_exporter(1)
    offer(often, 40, 0.55)
    offer(often, 50, 0.65)
    link.parent.rename(scratch / "away")
    link.parent.write_text("in the way")
    often.offer(60, {"loss": 1.0, "accuracy": 0.9}, session.model.weights)
    often.wait(60)
    link.parent.unlink()
    (scratch / "away").rename(link.parent)
    exported_tables._SILENT = -1.0
    offer(often, 65, 0.7)  # as if the volume did not answer
    exported_tables._SILENT = 10.0
    session.tables.blocked_while_saved = True  # as in synchronous rounds: the next round waits
    offer(often, 70, 0.8, seconds=0)
    read = session.tables.read

    def read_slowly(part: Any) -> Any:
        time.sleep(0.3)
        return read(part)

    session.tables.read = read_slowly
    often.offer(80, {"loss": 1.0, "accuracy": 0.9}, session.model.weights, lambda: True)  # a task that has to stop does not wait for it
    read_export()
    return [exports, output.getvalue().splitlines()]


def frozen_disk(scratch: Path, connection: Any, *, blocked: bool) -> dict[str, Any]:
    """Export a model to a disk that freezes while rows are written, and another one once it answers; return the step and the reported events.

    With `blocked`, as in synchronous rounds, training waits for the rows for a while.
    """
    import pytest

    from tests.volumes import volume
    from trainer.engine import export
    from trainer.engine.embeddings import exported_tables, table_files
    from trainer.events import Reporter
    from trainer.settings import Export

    exported_tables._READ, table_files._FILE_BYTES, exported_tables._SILENT = 64, 200, 1.0
    session = new_session(config_of(scratch, {"model": "functional"}, steps=1000), connection)
    session.begin_at(0)
    tables, model = session.tables, session.model
    read, is_frozen, thawed = tables.read, threading.Event(), threading.Event()
    output = io.StringIO()

    def offer(step: int, accuracy: float) -> Any:
        exporter = export.BestModel(Export(), disk.path, ("accuracy",), model, Reporter("chief", output), share=1, tables=tables)
        exporter.offer(step, {"accuracy": accuracy}, model.weights)
        return exporter

    def read_and_freeze(part: Any) -> Any:
        if part.first and not is_frozen.is_set():  # some rows are on the disk
            disk.freeze()
            is_frozen.set()
        return read(part)

    def thaw() -> None:
        if not thawed.is_set():
            thawed.set()
            disk.thaw()

    scratch.mkdir(exist_ok=True)
    try:
        with volume(scratch / "disk", scratch / "image") as disk:
            tables.read, tables.blocked_while_saved = read_and_freeze, blocked
            threading.Timer(120, thaw).start()  # a process that waits for a frozen disk cannot be killed
            exporter = offer(10, 0.5)
            is_frozen.wait(60)
            session.run(10)
            end = time.monotonic() + 1.5
            exporter.finish(lambda: end, finished=True)
            result = {"step": session.step, "in time": not thawed.is_set(), "frozen": output.getvalue().splitlines()}
            thaw()
            exporter.wait(60)
            offer(20, 0.4).wait(60)
            session.close()
            return {**result, "thawed": output.getvalue().splitlines()[len(result["frozen"]) :]}
    except pytest.skip.Exception as reason:
        return {"skipped": str(reason)}


def lost_server(cluster: Any, scratch: Path, connection: Any) -> dict[str, Any]:
    """Export the last model with a server that is killed; return what a run that has finished, and one that has not, reports or raises."""
    from trainer.engine.export import write_last
    from trainer.engine.session import PeerLostError
    from trainer.events import Reporter
    from trainer.settings import Export

    session = new_session(config_of(scratch, {"model": "large"}), connection)
    session.begin_at(0)
    read, results = session.tables.read, {}

    def read_and_kill(part: Any) -> Any:
        if part.first:  # some rows have been read
            cluster.processes["ps-1"].kill()
            cluster.processes["ps-1"].wait()
        return read(part)

    session.tables.read = read_and_kill
    for finished in (True, False):
        output = io.StringIO()
        try:
            write_last(
                Export(),
                scratch / "lost",
                1,
                {},
                session.model,
                Reporter("chief", output),
                lambda: math.inf,
                finished=finished,
                tables=session.tables,
            )
            results[str(finished)] = "reported: " + output.getvalue()
        except PeerLostError as error:
            results[str(finished)] = f"raised: {error}"
    return {**results, "exports": [file.name for file in (scratch / "lost" / "export").iterdir()]}
