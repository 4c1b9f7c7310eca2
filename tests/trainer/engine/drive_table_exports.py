"""The part of drive_embeddings that exports models: too soon, while they are trained, to a disk that is frozen, and beside a ps that is lost."""

import io
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

from tests.trainer.engine.drive_embeddings import job_of, session


def export(one: Any, scratch: Path, workload: Any, whole: Any) -> None:
    """Export a session's model as `saved_model`; leave what `whole` has for some inputs, as `asked.npz`."""
    import numpy as np

    from trainer.engine.embeddings.exported_tables import ExportedModel

    exported = ExportedModel(one.model, one.tables)
    exported.write(scratch)
    exported.discard()
    inputs, _ = next(iter(workload.eval_data(32)))
    np.savez(scratch / "asked.npz", outputs=whole(inputs), **{name: value.numpy() for name, value in inputs.items()})


def memory(scratch: Path, connection: Any) -> dict[str, int]:
    """Return the bytes of a table, and what this process takes more than before while it is exported, at most; 0 where that cannot be seen."""
    from trainer.engine.embeddings import exported_tables, server_rows, table_files

    exported_tables._READ, table_files._FILE_BYTES, server_rows._BLOCK = 2**19, 2**20, 2**24
    one = session(job_of(scratch, {"model": "large"}), connection)
    one.begin_at(0)
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def taken(name: str) -> int:
        lines = status.read_text().splitlines() if forget.exists() else []
        return sum(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    before = 0
    for place in ("first", "again"):  # the first time TensorFlow makes what it needs for any export
        if forget.exists():
            forget.write_text("5")  # the most that was taken
        before = taken("VmRSS")
        exported = exported_tables.ExportedModel(one.model, one.tables)
        (scratch / place).mkdir()
        exported.write(scratch / place)
        exported.discard()
        assert sum(file.stat().st_size for file in (scratch / place).rglob("*")) > one.tables.all[0].bytes
    return {"bytes": one.tables.all[0].bytes, "grown": taken("VmHWM") - before}


def best(scratch: Path, connection: Any) -> list[Any]:
    """Offer models of which some come too soon; return what stands in the files after each, and what was told."""
    import numpy as np
    import tensorflow as tf

    from trainer.engine import export
    from trainer.engine.embeddings import exported_tables
    from trainer.events import Reporter
    from trainer.settings import Export

    one = session(job_of(scratch, {"model": "outside"}), connection)
    one.begin_at(0)
    link, told = scratch / "export" / "best", io.StringIO()
    found: list[Any] = []

    def exporter(share: float) -> Any:
        names = ("loss", "accuracy")
        return export.BestModel(Export(), scratch, names, one.model, Reporter("chief", told), share=share, tables=one.tables)

    def see() -> None:
        facts, served = json.loads((link / "metrics.json").read_text()), tf.saved_model.load(str(link / "saved_model"))
        row = next(v for v in served._all_variables if v.shape == [10, 4])
        found.append([facts["step"], facts["value"], facts["formats"], sorted(float(x) for x in np.unique(row))])

    def offer(to: Any, step: int, accuracy: float, seconds: float = 60) -> None:
        for part in one.tables.parts():
            if not part.slot:
                one.tables.write(part, tf.fill([part.count, part.table.dimension], float(step)))
        to.offer(step, {"loss": 1.0, "accuracy": accuracy}, one.model.weights)
        to.wait(seconds)
        see()

    rare = exporter(1e-6)
    for step, accuracy in ((10, 0.5), (20, 0.7), (30, 0.6)):
        offer(rare, step, accuracy)  # the second and the third come too soon
    rare.finish(lambda: math.inf, 31, finished=True)  # training has gone on
    see()
    rare.finish(lambda: math.inf, 30, finished=True)
    see()
    often = exporter(1)
    offer(often, 40, 0.55)
    offer(often, 50, 0.65)
    link.parent.rename(scratch / "away")
    link.parent.write_text("in the way")
    often.offer(60, {"loss": 1.0, "accuracy": 0.9}, one.model.weights)
    often.wait(60)
    link.parent.unlink()
    (scratch / "away").rename(link.parent)
    exported_tables._SILENT = -1.0
    offer(often, 65, 0.7)  # the volume does not answer for so long
    exported_tables._SILENT = 10.0
    one.tables.blocked_while_saved = True  # as in rounds: the next one waits
    offer(often, 70, 0.8, seconds=0)
    read = one.tables.read

    def slowly(part: Any) -> Any:
        time.sleep(0.3)
        return read(part)

    one.tables.read = slowly
    often.offer(80, {"loss": 1.0, "accuracy": 0.9}, one.model.weights, lambda: True)  # a task that is to stop has no time for it
    see()
    return [found, told.getvalue().splitlines()]


def frozen(scratch: Path, connection: Any, *, held: bool) -> dict[str, Any]:
    """Export a model to a disk that is frozen while its rows are written, and the next once it answers; return what was done and told meanwhile.

    With `held`, as rows are that change in rounds, who offers the model waits for a while.
    """
    import pytest

    from tests.volumes import volume
    from trainer.engine import export
    from trainer.engine.embeddings import exported_tables, table_files
    from trainer.events import Reporter
    from trainer.settings import Export

    exported_tables._READ, table_files._FILE_BYTES, exported_tables._SILENT = 64, 200, 1.0
    one = session(job_of(scratch, {"model": "functional"}, steps=1000), connection)
    one.begin_at(0)
    read, is_frozen, thawed = one.tables.read, threading.Event(), threading.Event()
    told = io.StringIO()

    def offer(step: int, accuracy: float) -> Any:
        made = export.BestModel(Export(), disk.path, ("accuracy",), one.model, Reporter("chief", told), share=1, tables=one.tables)
        made.offer(step, {"accuracy": accuracy}, one.model.weights)
        return made

    def freezes(part: Any) -> Any:
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
            one.tables.read, one.tables.blocked_while_saved = freezes, held
            threading.Timer(120, thaw).start()  # a process that waits for a frozen disk ends for nobody
            best = offer(10, 0.5)
            is_frozen.wait(60)
            one.run(10)
            end = time.monotonic() + 1.5
            best.finish(lambda: end, finished=True)
            found = {"step": one.step, "in time": not thawed.is_set(), "frozen": told.getvalue().splitlines()}
            thaw()
            best.wait(60)
            offer(20, 0.4).wait(60)
            one.close()
            return {**found, "thawed": told.getvalue().splitlines()[len(found["frozen"]) :]}
    except pytest.skip.Exception as reason:
        return {"skipped": str(reason)}


def lost(here: Any, scratch: Path, connection: Any) -> dict[str, Any]:
    """Export the last model with a server that is killed; return what a run that has finished, and one that has not, makes of it."""
    from trainer.engine.export import write_last
    from trainer.engine.session import PeerLostError
    from trainer.events import Reporter
    from trainer.settings import Export

    one = session(job_of(scratch, {"model": "large"}), connection)
    one.begin_at(0)
    read, found = one.tables.read, {}

    def killed(part: Any) -> Any:
        if part.first:  # rows are on their way
            here.processes["ps-1"].kill()
            here.processes["ps-1"].wait()
        return read(part)

    one.tables.read = killed
    for finished in (True, False):
        told = io.StringIO()
        try:
            write_last(
                Export(),
                scratch / "lost",
                1,
                {},
                one.model,
                Reporter("chief", told),
                lambda: math.inf,
                finished=finished,
                tables=one.tables,
            )
            found[str(finished)] = "told: " + told.getvalue()
        except PeerLostError as error:
            found[str(finished)] = f"raised: {error}"
    return {**found, "left": [file.name for file in (scratch / "lost" / "export").iterdir()]}
