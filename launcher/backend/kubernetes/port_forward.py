"""Forwards a port of this machine to a port of a pod through the API server, like `kubectl port-forward`."""

import contextlib
import functools
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from launcher.backend.kubernetes import diagnosis, pod_status, status_reader, volume_affinity
from launcher.backend.kubernetes.client import ERRORS, Cluster, Object, translate_errors
from launcher.backend.kubernetes.object_fields import true_condition
from launcher.errors import LauncherError, UsageError
from launcher.plan.addresses import TENSORBOARD_PORT, url_host
from launcher.render.kubernetes.objects import COMPONENT_LABEL, TENSORBOARD
from launcher.runs import ports

_CHUNK = 65536
_START_TIMEOUT = 120.0  # seconds, on another node
_POLL_INTERVAL = 0.5


def await_tensorboard(cluster: Cluster, run: str) -> None:
    """Wait until a run's TensorBoard is ready, or its pod has a problem. Raises the errors of `tensorboard_pod`.

    A TensorBoard whose node was drained waits for the node of the run's tasks. If these have ended, remove its pod affinity, so that any node can
    run it, and wait as long again, whatever its old pod reports. An evaluator that was drained with it, and has no other pod to follow, then
    follows it.
    """
    moved = announced = False
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        of_run = cluster.list_objects("Pod", status_reader.labels_of(run))
        tensorboard_pods = [pod for pod in of_run if pod_status.role_of(pod) == TENSORBOARD]
        if any(true_condition(pod, "Ready") for pod in tensorboard_pods):
            return
        message = f"waiting up to {_START_TIMEOUT:.0f} s for TensorBoard of {run} to start"
        if (
            not moved
            and any(volume_affinity.has_no_affinity_target(pod, of_run) for pod in tensorboard_pods)
            and _only_waiting_tasks_left(cluster, run, of_run)
        ):
            cluster.patch("Deployment", f"{run}-{TENSORBOARD}", {"spec": {"template": {"spec": {"affinity": {"podAffinity": None}}}}})
            message = f"TensorBoard of {run} moves to a node where its volume can be used, and has {_START_TIMEOUT:.0f} s to start there"
            moved, announced, deadline = True, False, time.monotonic() + _START_TIMEOUT
        elif not moved and (any(map(diagnosis.diagnose_pod, tensorboard_pods)) or not (tensorboard_pods or _has_tensorboard(cluster, run))):
            break
        if not announced:
            print(message, file=sys.stderr, flush=True)
            announced = True
        time.sleep(_POLL_INTERVAL)
    tensorboard_pod(cluster, run)


def _has_tensorboard(cluster: Cluster, run: str) -> bool:
    """Return whether a run has a TensorBoard, whose pod is then still to come; raise LauncherError if the pod is refused."""
    deployment = cluster.get("Deployment", f"{run}-{TENSORBOARD}")
    if deployment and (refused := true_condition(deployment, "ReplicaFailure")):
        raise LauncherError(f"TensorBoard of {run} gets no pod: {refused.get('message', '')}", "see tensorboard.cpu and tensorboard.memory")
    return deployment is not None


def _only_waiting_tasks_left(cluster: Cluster, run: str, pods: Sequence[Object]) -> bool:
    """Return whether no task is still to run except those that wait for TensorBoard. A Job that waits in a queue, without pods, is still to run."""
    jobs = [job for job in cluster.list_objects("Job", status_reader.labels_of(run)) if pod_status.is_role(job)]
    waiting = {pod_status.role_of(pod) for pod in pods if volume_affinity.has_no_affinity_target(pod, pods)}
    unfinished = [job for job in jobs if not true_condition(job, "Complete")]
    return any(true_condition(job, "Failed") for job in jobs) or all(pod_status.role_of(job) in waiting for job in unfinished)


def tensorboard_pod(cluster: Cluster, run: str) -> Object:
    """Return the ready pod of a run's TensorBoard.

    Raises UsageError if the run has none, LauncherError with the reason if it is not ready.
    """
    pods = cluster.list_objects("Pod", {**status_reader.labels_of(run), COMPONENT_LABEL: TENSORBOARD})
    for pod in pods:
        if true_condition(pod, "Ready"):
            return pod
    if not pods:
        raise UsageError(
            f"{run} has no TensorBoard in {cluster.description()}",
            "it runs from `launcher up` until `launcher down`, or kubernetes.tensorboard_ttl after the run's end; not with `tensorboard: false`, nor without "
            f"`storage`. See the logs here: `launcher get {run} logs`, then `tensorboard --logdir {run}-logs`",
        )
    found = next((found for pod in pods if (found := diagnosis.diagnose_pod(pod))), None)
    cause, remedy = (found.message, found.remedy) if found else ("it is starting", "try again in a moment")
    raise LauncherError(f"TensorBoard of {run} is not ready: {cause}", remedy)


class Forward:
    """Listens on this machine at `url`; `serve` relays connections until the process is interrupted."""

    def __init__(self, cluster: Cluster, run: str, host: str, port: int | None) -> None:
        self._cluster, self._run = cluster, run
        await_tensorboard(cluster, run)
        with self._opened():  # report a failure, e.g. a lacking right, now rather than at the browser's first connection
            pass
        self._server = _listen(host, port)
        self.url = f"http://{url_host(host)}:{self._server.getsockname()[1]}"

    def serve(self) -> None:
        """Relay each connection in its own thread, forever."""
        with self._server:
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._relay, args=(connection,), name="forward", daemon=True).start()

    def _relay(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(LauncherError, *ERRORS), self._opened() as pod_connection:
            reverse = threading.Thread(target=_pump, args=(pod_connection, connection), name="forward-back", daemon=True)
            reverse.start()
            _pump(connection, pod_connection)
            reverse.join()

    def _opened(self) -> contextlib.AbstractContextManager[Any]:
        """Open a connection to the pod that TensorBoard has now: it may have been replaced since the last connection."""
        return contextlib.closing(connect(self._cluster, tensorboard_pod(self._cluster, self._run)["metadata"]["name"], TENSORBOARD_PORT))


def connect(cluster: Cluster, pod: str, port: int) -> Any:
    """Return a connection, like a socket, to a port of a pod's loopback address. Raises LauncherError if there is none."""
    _hide_tracebacks()
    # A separate client: while one opens a stream it cannot be used for anything else, and a browser opens several at once.
    api = CoreV1Api(ApiClient(configuration=cluster.client.configuration))
    with translate_errors(f"forwarding a port to the pod {pod}"):
        try:
            return portforward(api.connect_get_namespaced_pod_portforward, pod, cluster.namespace, ports=str(port)).socket(port)
        except ApiException as error:
            raise _original_error(error) from error


def _original_error(error: Any) -> Any:
    """Return the cause that the client has hidden in an ApiException without a status: an interrupt, or the API server's answer."""
    cause = error.__context__
    if isinstance(cause, KeyboardInterrupt | SystemExit):
        return cause
    status = getattr(cause, "status_code", None)
    if status is None:
        return error
    api_error = ApiException(status=status, reason=cause.status_message)
    api_error.body = (cause.resp_body or b"").decode("utf-8", "replace")
    return api_error


@functools.cache  # two threads may both do it, which does no harm
def _hide_tracebacks() -> None:
    """Keep the client's port-forward threads from writing a traceback when a connection closes: the reader gets an error anyway."""
    original_hook = threading.excepthook

    def report_exception(args: threading.ExceptHookArgs) -> None:
        if args.thread is None or not args.thread.name.startswith("Kubernetes port forward"):
            original_hook(args)

    threading.excepthook = report_exception


def _pump(source: Any, sink: Any) -> None:
    """Copy bytes one way until an end closes, then close that direction of the other."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _listen(host: str, port: int | None) -> socket.socket:
    last: OSError | None = None
    for candidate in [port] if port is not None else ports.candidates(TENSORBOARD_PORT):
        try:
            return ports.listen(host, candidate)
        except OSError as error:
            last = error
    wanted = str(port) if port is not None else f"from {TENSORBOARD_PORT} on"
    raise UsageError(f"no port {wanted} of {host} can be used: {last}", "give another one with --port, or 0 for any that is free")
