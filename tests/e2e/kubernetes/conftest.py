"""The cluster that KUBECONFIG names, a namespace of its own for each module, and the trainer's image on the nodes."""

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
from tests.e2e.kubernetes.nodes import node_groups, reserved


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run modules that take minutes first, so that no process starts a long one at the end.

    Modules that change nodes wait for a free group of nodes: those that take minutes come first of all, short ones last. If no nodes are
    set apart, all modules that change nodes come last, because the process that runs them waits for all others.
    """
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, bool, bool]:
    changes, minutes = _changes_nodes(item), item.get_closest_marker("takes_minutes") is not None
    return changes and not node_groups(), not minutes, changes != minutes


@pytest.fixture(scope="module", autouse=True)
def _exclusive_nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reserve a group of nodes for a module that changes nodes. If none are set apart, run the module while no other module runs."""
    changes = _changes_nodes(request.node)
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    if node_groups():
        with reserved(shared) if changes else contextlib.nullcontext():
            yield
        return
    with (shared / "nodes.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if changes else fcntl.LOCK_SH)
        yield


def _changes_nodes(node: pytest.Item | pytest.Collector) -> bool:
    return node.get_closest_marker("changes_nodes") is not None


@pytest.fixture(scope="session")
def cluster() -> str:
    """Return the cluster's version; skip if no cluster answers."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    try:
        result = subprocess.run(["kubectl", "get", "--raw", "/version"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("no cluster answers within 20 s")
    if result.returncode:
        pytest.skip(f"no cluster answers: {result.stderr.strip()[-200:]}")
    return result.stdout


@pytest.fixture(scope="session")
def image() -> str:
    """Return the image that the nodes have: TRAINER_IMAGE, or that of `launcher image build`."""
    return os.environ.get("TRAINER_IMAGE", DEFAULT_IMAGE)


@pytest.fixture(scope="module")
def namespace(cluster: str) -> Iterator[Namespace]:
    """Return a namespace that enforces Pod Security `restricted`, deleted with its content at the end of the module."""
    assert cluster
    with _namespace() as created:
        yield created


@pytest.fixture(scope="module")
def other_namespace(cluster: str) -> Iterator[Namespace]:
    """Return a second namespace like `namespace`."""
    assert cluster
    with _namespace() as created:
        yield created


@pytest.fixture(scope="module")
def launcher(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    """Return the command line for the namespace, with a directory of runs of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")}
    return Launcher(namespace, tmp_path_factory.mktemp("runs"), env)


@contextlib.contextmanager
def _namespace() -> Iterator[Namespace]:
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    kubectl("create", "-f", "-", text=json.dumps(manifest))
    try:
        yield Namespace(name)
    finally:
        kubectl("-n", name, "delete", "jobs", "--all", "--wait=false")  # first: docs/kubernetes.md, Deleting a run
        kubectl("delete", "namespace", name, "--wait=false")
