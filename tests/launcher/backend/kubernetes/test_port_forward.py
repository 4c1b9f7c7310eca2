"""Connections to pods through the API server, up to the pod; the rest needs a cluster, see tests/e2e/kubernetes."""

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.backend.kubernetes import port_forward
from launcher.backend.kubernetes.backend import KubernetesBackend
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.backend.model import ClusterRef
from launcher.errors import LauncherError
from launcher.runs import task_stacks
from tests.launcher.backend.kubernetes.conftest import ForwardHandler
from tests.launcher.backend.kubernetes.objects import StandInClock, pod, running

FORBIDDEN = 'pods "tensorboard" is forbidden: User "anna" cannot get resource "pods/portforward" in API group "" in the namespace "mine"'


@pytest.fixture
def backend(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesBackend:
    """Return a backend with the run `digits`, which has one running worker."""
    backend = KubernetesBackend(tmp_path, ClusterRef(None, None))
    monkeypatch.setitem(backend._clusters, "digits", cluster)
    monkeypatch.setattr(backend, "_pods", lambda _run: [running("worker")])
    return backend


def test_stacks_of_a_task_whose_port_is_not_forwarded_end_with_the_launcher_s_error(
    backend: KubernetesBackend, handler: type[ForwardHandler]
) -> None:
    handler.status, handler.message = 403, FORBIDDEN
    with pytest.raises(ForbiddenError, match="anna may not get pods/portforward in the namespace mine"):
        backend.stacks("digits", "worker-0")
    handler.status, handler.message = 404, 'pods "digits-worker-0-00" not found'
    with pytest.raises(LauncherError, match='forwarding a port to the pod digits-worker-0-00: pods "digits-worker-0-00" not found'):
        backend.stacks("digits", "worker-0")


def test_stacks_of_a_frozen_task_are_not_waited_for_without_a_limit(backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    own, frozen = socket.socketpair()
    end = threading.Timer(
        5, frozen.shutdown, [socket.SHUT_RDWR]
    )  # without a limit, the launcher would only now continue, with another error
    monkeypatch.setattr(task_stacks, "ANSWER_TIMEOUT", 0.05)
    monkeypatch.setattr(port_forward, "portforward", lambda *_, **__: SimpleNamespace(socket=lambda _port: own))
    end.start()
    with frozen, pytest.raises(LauncherError, match="worker-0: its parent does not answer"):
        backend.stacks("digits", "worker-0")
    end.cancel()
    assert own.fileno() == -1


def test_a_lacking_right_to_forward_ports_is_reported_before_tensorboard_s_address(
    cluster: Cluster, handler: type[ForwardHandler], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler.status, handler.message = 403, FORBIDDEN
    ready: dict[str, Any] = {
        "metadata": {"name": "tensorboard", "labels": {"app.kubernetes.io/component": "tensorboard"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    monkeypatch.setattr(cluster, "list_objects", lambda *_: [ready], raising=False)
    with pytest.raises(ForbiddenError, match="anna may not get pods/portforward"):
        port_forward.Forward(cluster, "digits", "127.0.0.1", 0)


def test_a_tensorboard_that_moves_to_another_node_has_as_long_again_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, moved_at = StandInClock(), list[float]()

    def list_objects(kind: str, _: object) -> list[dict[str, Any]]:
        waiting = pod("tensorboard", 0, "Pending")
        waiting["metadata"]["labels"]["tf-launcher/volume"] = "digits"
        if clock.now >= 100:  # its node was drained
            message = "0/1 nodes are available: 1 node(s) didn't match pod affinity rules."
            waiting["status"] |= {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
        return [waiting] if kind == "Pod" else []

    cluster = SimpleNamespace(list_objects=list_objects, patch=lambda *_: moved_at.append(clock.now))
    monkeypatch.setattr(port_forward, "time", clock)
    with pytest.raises(LauncherError, match="TensorBoard of digits is not ready"):
        port_forward.await_tensorboard(cast("Cluster", cluster), "digits")
    assert (moved_at, clock.now) == ([100], 220)
