"""A real cluster by KUBECONFIG, a namespace of its own for each test, and the trainer's image on its nodes."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from launcher.images import DEFAULT_IMAGE
from tests.e2e.kubernetes.cluster import Namespace, kubectl
from tests.e2e.kubernetes.launching import Launcher
from tests.e2e.kubernetes.nodes import apart, held


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those first that take minutes: the short ones fill what is left where several processes share them.

    Modules that change nodes wait for each other where there are fewer groups of nodes apart: one that takes minutes comes first of all, a
    short one last. Where no nodes are set apart, all of them come last: the process that runs them waits for the others to be done.
    """
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, bool, bool]:
    changes, minutes = _changes_nodes(item), item.get_closest_marker("takes_minutes") is not None
    return changes and not apart(), not minutes, changes != minutes


@pytest.fixture(scope="module", autouse=True)
def _alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let a module that changes nodes have a group that is set apart to itself; where the nodes are everybody's, run while no other module does."""
    changes = _changes_nodes(request.node)
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    if apart():
        with held(shared) if changes else contextlib.nullcontext():
            yield
        return
    with (shared / "nodes.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if changes else fcntl.LOCK_SH)
        yield


def _changes_nodes(node: pytest.Item | pytest.Collector) -> bool:
    return node.get_closest_marker("changes_nodes") is not None


@pytest.fixture(scope="session")
def cluster() -> str:
    """Return the cluster's version; skip where no cluster answers."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here")
    try:
        done = subprocess.run(["kubectl", "get", "--raw", "/version"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("no cluster answers within 20 s")
    if done.returncode:
        pytest.skip(f"no cluster answers: {done.stderr.strip()[-200:]}")
    return done.stdout


@pytest.fixture(scope="session")
def image() -> str:
    """Return the image that the nodes have: TRAINER_IMAGE, or what `launcher image build` makes."""
    return os.environ.get("TRAINER_IMAGE", DEFAULT_IMAGE)


@pytest.fixture(scope="module")
def namespace(cluster: str) -> Iterator[Namespace]:
    """Return a namespace that enforces Pod Security `restricted`, deleted with all in it when the module is done."""
    assert cluster
    with _namespace() as made:
        yield made


@pytest.fixture(scope="module")
def other_namespace(cluster: str) -> Iterator[Namespace]:
    """Return another one."""
    assert cluster
    with _namespace() as made:
        yield made


@pytest.fixture(scope="module")
def launcher(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    """Return the command line for the namespace, with a directory of runs of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")}
    return Launcher(namespace, tmp_path_factory.mktemp("runs"), env)


@contextlib.contextmanager
def _namespace() -> Iterator[Namespace]:
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("create", "-f", "-", text=json.dumps(made))
    try:
        yield Namespace(name)
    finally:
        kubectl("-n", name, "delete", "jobs", "--all", "--wait=false")  # first: docs/kubernetes.md, Deleting a run
        kubectl("delete", "namespace", name, "--wait=false")
