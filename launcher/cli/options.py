"""The options that verbs share, with their completion."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from launcher.backend.model import ClusterRef
from launcher.backend.registry import in_namespaces
from launcher.cli.run_lookup import DEFAULT_RUNS, read_stored, run_names
from launcher.plan.models import Target
from launcher.plan.role_rules import ROLE_ORDER, task_name

TARGET_CHOICES = "|".join(get_args(Target))


def _runs_of(context: Any) -> Path:
    return Path(context.params.get("runs") or os.environ.get("LAUNCHER_RUNS") or DEFAULT_RUNS)


def _argument(context: Any, argument: str) -> str | None:
    # While an option lacks its value, the parser stops before it assigns the arguments to their parameters.
    value = context.params.get(argument) or next(iter(context.args), None)
    return None if value is None else str(value)


def _tasks_of(context: Any) -> list[dict[str, Any]]:
    runs = _runs_of(context)
    name = _argument(context, "name")
    names = run_names(runs) if name is None else [name]
    plans = (read_stored(runs, name, "plan") for name in names)
    return [task for plan in plans if plan for task in plan.get("tasks", ())]


def matching(candidates: Iterable[str], incomplete: str) -> list[str]:
    """Return the candidates that begin with the incomplete word, each once."""
    return [candidate for candidate in dict.fromkeys(candidates) if candidate.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the runs, then the spec files of the working directory."""
    files = sorted(str(path) for path in Path().glob("*.y*ml"))
    return matching([*run_names(_runs_of(ctx)), *files], incomplete)


def complete_role(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the roles that the run has."""
    return matching((task["role"] for task in _tasks_of(ctx)), incomplete)


def complete_index(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the indices that the chosen roles have."""
    roles = ctx.params.get("role") or ROLE_ORDER
    return matching((str(task["index"]) for task in _tasks_of(ctx) if task["role"] in roles), incomplete)


def complete_task(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the tasks of the spec that the command line names."""
    from launcher.errors import LauncherError
    from launcher.spec.loader import load
    from launcher.spec.role_programs import roles_of

    try:
        roles = roles_of(load(Path(_argument(ctx, "file") or "")))
    except LauncherError:
        return []
    return matching((task_name(role, index) for role in ROLE_ORDER if role in roles for index in range(roles[role].replicas)), incomplete)


def complete_task_of_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the tasks of the run that is named."""
    plan = read_stored(_runs_of(ctx), _argument(ctx, "name") or "", "plan") or {}
    return matching((task["name"] for task in plan.get("tasks", ())), incomplete)


def complete_backend(incomplete: str) -> list[str]:
    """Offer the backends."""
    from launcher.backend.registry import BACKENDS

    return matching(BACKENDS, incomplete)


SpecFile = Annotated[Path, typer.Argument(metavar="FILE", help="The spec.", show_default=False)]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="The run, or its spec file. Optional if there is exactly one run.",
        autocompletion=complete_name,
        show_default=False,
    ),
]
Runs = Annotated[Path, typer.Option("--runs", envvar="LAUNCHER_RUNS", metavar="DIR", help="The directory that holds the runs.")]
On = Annotated[str, typer.Option("--on", metavar=TARGET_CHOICES, help="The backend of the run.", autocompletion=complete_backend)]


def backend_option(text: str) -> Any:
    """Return the option --on of a verb that can find the backend without it; `text` is its help."""
    return typer.Option("--on", metavar=TARGET_CHOICES, help=text, autocompletion=complete_backend, show_default=False)


# Of an existing run, which is found by its name.
OnRun = Annotated[
    str | None, backend_option("The backend of the run; by default the run is found by its name: a live one first, then the newest.")
]
# Of all runs.
OnListed = Annotated[str | None, backend_option("The backend whose runs are listed; by default those of this machine and in containers.")]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="On Kubernetes: the context of the kubeconfig, or LAUNCHER_CONTEXT.", show_default=False
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="On Kubernetes: the namespace, or LAUNCHER_NAMESPACE.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, for scripts.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value of the spec, e.g. train.steps=500. May be given more than once."),
]


def resolve_cluster_ref(on: str, cluster: ClusterRef) -> ClusterRef:
    """Return the context and the namespace of the options; for a cluster, those of the environment if an option is not given."""
    if not in_namespaces(on):
        return cluster
    context, namespace = cluster.context or os.environ.get("LAUNCHER_CONTEXT"), cluster.namespace or os.environ.get("LAUNCHER_NAMESPACE")
    return ClusterRef(context, namespace)
