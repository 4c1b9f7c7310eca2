"""The backends: where each one is, and what sets it apart for the command line. docs/architecture.md says how to add one."""

from dataclasses import dataclass

from launcher.plan.models import Target
from launcher.runs.paths import DOCKER_STATE_DIR, KUBERNETES_STATE_DIR

DEFAULT: Target = "local"  # the backend of `up`, `plan` and `doctor` without --on; other verbs look there first


@dataclass(frozen=True)
class BackendEntry:
    """A backend. `class_path`: its class as module:name, made with the runs directory, and with a Where if it is `in_namespaces`.

    `examiner`: the module of its checks for `launcher doctor`, whose function `examine` is a `launcher.backend.check_results.Check`.
    `state_directory`: below the runs directory, where this machine keeps what it knows of the backend's runs. `in_namespaces`: its runs are in
    namespaces of clusters, and a `ClusterRef` names one. `stores_locally`: what a run stores is in a directory of this machine.
    `shows_runs_of_others`: runs of other machines are known by their labels alone, so of their specs only the digest.
    """

    class_path: str
    checks_module: str
    state_directory: str = ""
    in_namespaces: bool = False
    stores_locally: bool = False
    shows_runs_of_others: bool = False


# A backend's name is also the target of its plans.
BACKENDS: dict[Target, BackendEntry] = {
    "local": BackendEntry("launcher.backend.local.backend:LocalBackend", "launcher.backend.local.doctor", stores_locally=True),
    "docker": BackendEntry(
        "launcher.backend.docker.backend:DockerBackend",
        "launcher.backend.docker.doctor",
        state_directory=DOCKER_STATE_DIR,
        shows_runs_of_others=True,
    ),
    "kubernetes": BackendEntry(
        "launcher.backend.kubernetes.backend:KubernetesBackend",
        "launcher.backend.kubernetes.doctor",
        state_directory=KUBERNETES_STATE_DIR,
        in_namespaces=True,
    ),
}


def entry(name: str | None) -> BackendEntry | None:
    """Return the entry of the backend called `name`, None for none."""
    return next((found for known, found in BACKENDS.items() if known == name), None)


def in_namespaces(name: str | None) -> bool:
    """Return whether the runs of the backend called `name` are in namespaces of clusters."""
    found = entry(name)
    return found is not None and found.in_namespaces


def cluster_backend() -> str:
    """Return the backend that --context and --namespace mean where --on is left out."""
    return next(name for name, found in BACKENDS.items() if found.in_namespaces)


def backends_with_local_specs() -> list[str]:
    """Return the backends that store the spec and plan of their runs on this machine, the default one first."""
    return [name for name, found in BACKENDS.items() if not found.in_namespaces]
