"""The registry of backends: where each one is, and its properties for the command line. docs/architecture.md says how to add one."""

from dataclasses import dataclass

from launcher.plan.models import Target
from launcher.runs.paths import DOCKER_STATE_DIR, KUBERNETES_STATE_DIR

DEFAULT: Target = "local"  # the backend of `up`, `plan` and `doctor` without --on; other verbs search it first


@dataclass(frozen=True)
class BackendEntry:
    """A backend. `class_path`: its class as module:name, called with the runs directory, and with a `ClusterRef` if it is `in_namespaces`.

    `checks_module`: the module of its checks for `launcher doctor`, whose function `examine` is a `launcher.backend.check_results.Check`.
    `state_directory`: the directory of this machine's files about the backend's runs, below the runs directory. `in_namespaces`: its runs are in
    namespaces of clusters, and a `ClusterRef` names one. `stores_locally`: a run's data is in a directory of this machine.
    `shows_runs_of_others`: it also shows runs that other machines started, of whose spec only the digest is known, by a label.
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
    return next((backend for target, backend in BACKENDS.items() if target == name), None)


def in_namespaces(name: str | None) -> bool:
    """Return whether the runs of the backend called `name` are in namespaces of clusters."""
    backend = entry(name)
    return backend is not None and backend.in_namespaces


def cluster_backend() -> str:
    """Return the backend that --context and --namespace imply without --on."""
    return next(name for name, backend in BACKENDS.items() if backend.in_namespaces)


def backends_with_local_specs() -> list[str]:
    """Return the backends that store the spec and plan of their runs on this machine, the default one first."""
    return [name for name, backend in BACKENDS.items() if not backend.in_namespaces]
