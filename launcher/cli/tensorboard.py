"""`launcher tensorboard`: TensorBoard on a run's logs."""

import importlib.util
import os
import sys
from typing import Annotated

import typer

from launcher.backend.model import ClusterRef, ServesTensorBoard
from launcher.cli.options import Context, Name, Namespace, OnRun, Runs
from launcher.cli.run_lookup import DEFAULT_RUNS, read_stored
from launcher.errors import LauncherError, UsageError
from launcher.plan.addresses import TENSORBOARD_PORT
from launcher.plan.machine import search_path, source_directory
from launcher.runs import ports

EXAMPLES = (
    (
        "launcher tensorboard mnist",
        "on http://127.0.0.1:6006 unless the spec says otherwise; Ctrl-C ends it. For a Docker run it starts a container, and returns",
    ),
    ("launcher tensorboard mnist --port 0", "on any free port"),
)


def tensorboard(
    name: Name = None,
    *,
    port: Annotated[
        int | None,
        typer.Option(
            help="The port; by default the spec's, on Kubernetes 6006, or the next free one.", min=0, max=65535, show_default=False
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; by default the spec's, on Kubernetes loopback.", show_default=False)
    ] = None,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
) -> None:
    """Open TensorBoard on a run's logs."""
    from launcher.cli.backends import open_run

    backend, run = open_run(name, on, runs, ClusterRef(context, namespace))
    if isinstance(backend, ServesTensorBoard):
        served = backend.tensorboard(run, host=host, port=port)
        print(served.url, flush=True)
        if served.serve is not None:
            served.serve()
        return
    if not _is_installed():
        raise LauncherError("TensorBoard is not installed here", f"install it: {sys.executable} -m pip install tensorboard")
    directory = (backend.status(run).local_run_dir or runs / run) / "logs"
    if not directory.is_dir():
        raise UsageError(
            f"{run} has no logs for TensorBoard: {directory} does not exist",
            "training creates it; a command of your own has to write to $RUN_DIR/logs",
        )
    settings = (read_stored(runs, run, "spec") or {}).get("tensorboard") or {}
    host = host or settings.get("host") or "127.0.0.1"
    port = _free_port(host, settings.get("port") or TENSORBOARD_PORT) if port is None else _check_port(host, port)
    command = [sys.executable, "-P", "-m", "trainer.tensorboard", "--logdir", str(directory), "--host", host, "--port", str(port)]
    search = search_path(os.environ.get("PYTHONPATH"), source_directory())
    sys.stdout.flush()
    # It replaces this process, so that Ctrl-C and signals reach TensorBoard and nothing is left behind.
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": search})  # noqa: S606  without a shell on purpose


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("tensorboard") is not None
    except ValueError:  # sys.modules has None for it
        return False


def _check_port(host: str, port: int) -> int:
    if not ports.is_free(host, port):
        raise UsageError(f"port {port} of {host} cannot be used", "give another one, or 0 for any that is free")
    return port


def _free_port(host: str, first: int) -> int:
    if (port := ports.next_free(host, first)) is not None:
        return port
    raise UsageError(f"{host} has no free port from {first} on", "give one with --port, or 0 for any that is free")
