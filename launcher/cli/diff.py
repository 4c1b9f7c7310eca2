"""`launcher diff`: what `up` would change in a cluster."""

from typing import Annotated

import typer

from launcher.backend.model import Where
from launcher.cli.options import Context, Namespace, Runs, Set, SpecFile, complete_backend, placed
from launcher.cli.runs import DEFAULT_RUNS
from launcher.errors import UsageError

EXAMPLES = (
    ("launcher diff cluster.yaml", "what `up --on kubernetes` would make, change or delete; nothing when it would change nothing"),
    ("launcher diff cluster.yaml --set train.steps=500 && echo same", "the exit code is 1 where there is a difference"),
)
DIFFERS = 1


def diff(
    file: SpecFile,
    *,
    overrides: Set = None,
    on: Annotated[str, typer.Option("--on", metavar="BACKEND", help="Where the run is.", autocompletion=complete_backend)] = "kubernetes",
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
) -> int:
    """Show what `up` would change in a cluster."""
    from launcher.cli.backends import check_backend
    from launcher.cli.planning import planned_there
    from launcher.spec.loader import dump

    if check_backend(on) != "kubernetes":
        raise UsageError(f"nothing is applied on {on}, so there is nothing to compare", "`launcher up` shows what has changed in a spec")
    from launcher.backend.kubernetes.backend import KubernetesBackend

    context, namespace = placed("kubernetes", context, namespace)
    spec, plan, where = planned_there(file, overrides or [], "kubernetes", runs, Where(context, namespace))
    backend = KubernetesBackend(runs, where)
    differs = False
    for line in backend.differences(plan, dump(spec)):
        differs = True
        print(line)
    return DIFFERS if differs else 0
