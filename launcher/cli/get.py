"""`launcher get`: copy what a run has stored: its model, checkpoints, logs or results."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from launcher import formats
from launcher.backend.model import ClusterRef
from launcher.cli import unpacking
from launcher.cli.interrupts import exit_on_signals
from launcher.cli.options import Context, Json, Name, Namespace, OnRun, Runs
from launcher.cli.run_lookup import DEFAULT_RUNS, relative_path
from launcher.cli.unpacking import Unpacked
from launcher.errors import UsageError
from launcher.files import read_json
from launcher.runs.artifacts import Artifact, ArtifactStream, missing_artifact_error

EXAMPLES = (
    ("launcher get mnist", "the exported model, into ./mnist-model"),
    ("launcher get mnist model models/first --on kubernetes", "the same, into models/first, from a cluster"),
    ("launcher get mnist checkpoints", "all checkpoints of the run, into ./mnist-checkpoints"),
)
_REPORT_INTERVAL = 10.0  # seconds, without a terminal


def get(
    name: Name = None,
    what: Annotated[
        Artifact,
        typer.Argument(metavar="WHAT", help="model, checkpoints, logs (TensorBoard's) or results; by default model.", show_default=False),
    ] = Artifact.MODEL,
    destination: Annotated[
        Path | None,
        typer.Argument(metavar="DEST", help="The directory to create; by default ./NAME-WHAT, e.g. ./mnist-model.", show_default=False),
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files at DEST.")] = False,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Copy a run's model, checkpoints, logs or results here."""
    from launcher.cli.backends import open_run

    backend, run = open_run(name, on, runs, ClusterRef(context, namespace))
    directory = Path(destination or f"{run}-{what}").absolute()
    unpacking.check(directory, runs, replace=force)
    began = time.monotonic()
    with exit_on_signals(), backend.fetch(run, what) as stored:
        with _progress(stored, f"{run}: {what}", quiet=as_json) as on_bytes:
            unpacked = unpacking.unpack(stored.chunks, directory, replace=force, on_bytes=on_bytes)
        origin = stored.origin
    if not unpacked.files and unpacked.left_out:
        raise UsageError(
            f"{run} has no {what} to copy: {origin} has only links that lead outside of it, or special files: {', '.join(unpacked.left_out)}",
            "have the program write files there, or copy the links' targets yourself",
        )
    if not unpacked.files:
        raise missing_artifact_error(run, what, ())
    if as_json:
        facts = {"name": run, "what": what, "path": str(directory), "origin": origin, "files": unpacked.files, "bytes": unpacked.size}
        print(json.dumps({**facts, "left_out": unpacked.left_out, "seconds": round(time.monotonic() - began, 3)}))
        return
    _print_result(run, what, directory, unpacked)


def _print_result(run: str, what: Artifact, directory: Path, unpacked: Unpacked) -> None:
    shown = relative_path(str(directory))
    print(
        f"{run}: the {_subject(what, directory)} in {shown}, {formats.count(unpacked.files, 'file')}, {formats.binary_size(unpacked.size)}"
    )
    if unpacked.left_out:
        print(f"left out: links that lead outside, and special files: {', '.join(unpacked.left_out)}", file=sys.stderr)
    if what is Artifact.MODEL and (directory / "model.keras").is_file():
        print(f'load it with keras.models.load_model("{shown}/model.keras")')
    elif what is Artifact.MODEL and (directory / "saved_model").is_dir():
        print(f'load it with tf.saved_model.load("{shown}/saved_model")')


def _subject(what: Artifact, directory: Path) -> str:
    """Return the subject of the result and its verb: `model of step 500, accuracy 0.97 is`."""
    if what is not Artifact.MODEL:
        return f"{what} are"
    facts = read_json(directory / "metrics.json") or {}
    if not isinstance(facts.get("step"), int):
        return "model is"
    by = f", {facts['metric']} {formats.number(facts.get('value'))}" if facts.get("metric") else ""
    return f"model of step {facts['step']:,}{by} is"


@contextlib.contextmanager
def _progress(stored: ArtifactStream, label: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show on stderr how many bytes were received: as a bar on a terminal, else as a line every ten seconds."""
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield _LineProgress(label, stored.size)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(label, total=stored.size)
        yield lambda count: progress.advance(bar, count)


class _LineProgress:
    """Prints from time to time how many bytes were received."""

    def __init__(self, label: str, size: int | None) -> None:
        self._label, self._total = label, "" if size is None else f" of {formats.binary_size(size)}"
        self._received, self._reported = 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self._received += count
        if time.monotonic() - self._reported >= _REPORT_INTERVAL:
            self._reported = time.monotonic()
            print(f"{self._label}: {formats.binary_size(self._received)}{self._total}", file=sys.stderr, flush=True)
