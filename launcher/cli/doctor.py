"""`launcher doctor`: whether a backend can run clusters, and a given spec."""

import importlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from launcher.backend.model import ClusterRef
from launcher.backend.registry import BACKENDS, DEFAULT
from launcher.cli.options import Context, Json, Namespace, On, Runs, Set, resolve_cluster_ref
from launcher.cli.run_lookup import DEFAULT_RUNS
from launcher.errors import LauncherError, UsageError

if TYPE_CHECKING:
    from launcher.backend.check_results import Check, CheckRequest, CheckResult

EXAMPLES = (
    ("launcher doctor", "whether this machine can run clusters"),
    ("launcher doctor --on docker", "whether the Docker engine can"),
    ("launcher doctor cluster.yaml --on kubernetes", "whether the cluster can, and whether this spec fits it"),
)
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}
PROBLEM_FOUND = 1


def doctor(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A spec: does it fit?", show_default=False)] = None,
    *,
    set_options: Set = None,
    on: On = DEFAULT,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> int:
    """Check a machine, an engine or a cluster; with a spec, whether it fits."""
    from launcher.backend.check_results import CheckRequest
    from launcher.cli.backends import check_backend, check_cluster
    from launcher.spec.loader import load

    target = check_backend(on)
    cluster = ClusterRef(context, namespace)
    check_cluster(on, cluster)
    if set_options and file is None:
        raise UsageError("--set changes a value of a spec, and none is given", "give the spec's FILE too, or leave out --set")
    spec = None if file is None else load(file, set_options or [])
    own = spec.kubernetes.namespace if spec is not None else None
    cluster = resolve_cluster_ref(on, cluster)
    request = CheckRequest(spec, ClusterRef(cluster.context, cluster.namespace or own), str(runs))
    results = []
    for result in _examine(BACKENDS[target].checks_module, request):
        results.append(result)
        if not as_json:
            _print(result)
    is_ok = all(result.level != "problem" for result in results)
    if as_json:
        print(json.dumps({"on": on, "well": is_ok, "findings": list(map(_finding, results))}))
    return 0 if is_ok else PROBLEM_FOUND


def _finding(result: "CheckResult") -> dict[str, str]:
    fields = asdict(result)
    fields["words"] = fields.pop("message")  # the documented key
    return {key: fields[key] for key in ("level", "what", "words", "remedy")}


def _examine(module: str, request: "CheckRequest") -> "Iterator[CheckResult]":
    from launcher.backend.check_results import error_result

    check = cast("Check", importlib.import_module(module).examine)
    try:
        yield from check(request)
    except LauncherError as error:  # the checks after it need what failed
        yield error_result("examination", error)


def _print(result: "CheckResult") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text.assemble((f"{result.level:<8}", _COLOURS[result.level]), f" {result.what}: {result.message}"), soft_wrap=True)
    if result.remedy:
        console.print(Text(f"         {result.remedy}", style="bright_black"), soft_wrap=True)
