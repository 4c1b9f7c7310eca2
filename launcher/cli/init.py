"""`launcher init`: a commented starter spec."""

import json
import shlex
from pathlib import Path
from typing import Annotated, get_args

import typer

from launcher.cli import output_file
from launcher.cli.options import Json, matching
from launcher.errors import UsageError
from trainer.strategies import Strategy

EXAMPLES = (
    ("launcher init", "cluster.yaml: a parameter-server cluster that trains mnist_mlp"),
    ("launcher init --strategy multi_worker_mirrored --workload mnist", "another strategy and workload"),
    ("launcher init train.yaml --name train --command", "your own program, which reads TF_CONFIG"),
)
_WORKLOAD = "mnist_mlp"


def _strategies(incomplete: str) -> list[str]:
    return matching(get_args(Strategy), incomplete)


def _workloads(incomplete: str) -> list[str]:
    from trainer.workloads.catalog import CATALOG

    return matching(CATALOG, incomplete)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The spec to write.")] = Path("cluster.yaml"),
    *,
    workload: Annotated[
        str | None,
        typer.Option(
            help=f"The workload: a built-in one, or package.module:name of your code; by default {_WORKLOAD}.",
            autocompletion=_workloads,
            show_default=False,
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="How its tasks work together.", autocompletion=_strategies, metavar="|".join(get_args(Strategy)))
    ] = "parameter_server",
    name: Annotated[
        str | None, typer.Option(help="The run's name; by default the workload's, or `my-run` for a program.", show_default=False)
    ] = None,
    program: Annotated[bool, typer.Option("--command", help="Run a program of your own instead of a workload.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented starter spec."""
    from launcher.spec.schema import SCHEMA_FILE
    from launcher.spec.starter import starter_spec

    if program and workload is not None:
        raise UsageError("--command runs a program in place of a workload, and --workload names one", "leave out one of them")
    workload = None if program else workload or _WORKLOAD
    run = name or _name(workload)
    text = f"# yaml-language-server: $schema={SCHEMA_FILE}\n" + starter_spec(run, workload, strategy)
    _write(file, text, force=force)
    if as_json:
        print(json.dumps({"file": str(file), "name": run, "strategy": strategy, "workload": workload}))
    else:
        print(f"wrote {file}: edit it, then run it with `{shlex.join(['launcher', 'up', str(file)])}`")


def _name(workload: str | None) -> str:
    return "my-run" if workload is None else workload.partition(":")[0].rpartition(".")[2].replace("_", "-").lower()


def _write(file: Path, text: str, *, force: bool) -> None:
    output_file.check(file, force=force)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:  # "x": another process may create it meanwhile
            out.write(text)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}", "give a file in a directory that you may write to") from None
