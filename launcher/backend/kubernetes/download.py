"""Download of what a run has stored: a pod that mounts its volume serves it on its own loopback, to which a port is forwarded.

So it takes no right to run commands in pods (`pods/exec`). Nobody else gets at it: other pods cannot reach a pod's loopback, and who may forward
ports needs the token, which stays in this process; the pod knows its digest.
"""

import contextlib
import hashlib
import http.client
import io
import json
import secrets
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from launcher.backend.kubernetes import helper_pod, status_source
from launcher.backend.kubernetes.client import ERRORS, Cluster, claims_of, translate_errors
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.errors import LauncherError, UsageError
from launcher.files import json_object
from launcher.images import USER
from launcher.plan import planner
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes.objects import TRAINER, Run
from launcher.runs import archive
from launcher.runs.stored import ARTIFACT_DIRECTORIES, Artifact, Stored, missing_artifact
from launcher.spec.models import ClusterSpec
from launcher.spec.names import RUN_VOLUME

RUN_JSON = "run.json"
_PORT = 8080  # in the pod
_IDLE = 120.0  # seconds without a request or a reader after which the pod ends by itself
_ANSWER_TIMEOUT = 60.0  # seconds after it runs: a slow machine imports Python's HTTP server
_RETRY_INTERVAL = 0.5
_LINES = 3  # the last of a pod that does not answer, as they are shown
_PIECE = 1 << 16
_NOT_YET: tuple[type[Exception], ...] = (http.client.HTTPException, LauncherError, *ERRORS)


@contextlib.contextmanager
def opened(cluster: Cluster, name: str, run: Run | None, artifact: Artifact) -> Iterator[Stored]:
    """Open for a `with` block what a run, None where nobody has noted its spec, has stored of a kind; the pod is gone afterwards.

    Raises UsageError where there is nothing of it, LauncherError where the pod cannot be started or does not answer.
    """
    run = run or _of_jobs(cluster, name)
    if run is None:
        raise UsageError(
            f"{name} was not started by `launcher up`, and no Job of it is left that says where its data is",
            f"copy its directory from a pod that mounts the volume: kubectl cp POD:{CONTAINER_RUNS}/{name} {name}",
        )
    if run.storage is None:
        raise UsageError(
            f"{name} has no volume of its run, as its spec has no `storage`",
            "write `storage: {}`, and have the program write to $RUN_DIR; files on volumes of its own are read from there",
        )
    if cluster.get("PersistentVolumeClaim", run.claim) is None:
        raise missing_artifact(name, artifact, ())
    with _served(cluster, run, artifact, ARTIFACT_DIRECTORIES) as (answer, pieces):
        if answer.status == http.client.NOT_FOUND:
            raise missing_artifact(run.name, artifact, json.loads(answer.read()))
        directory = answer.headers[archive.PATH_HEADER]
        where = f"{status_source.on_claim(run.claim, cluster, run.name)}{directory}"
        yield Stored(where, pieces, int(answer.headers[archive.SIZE_HEADER]))


def run_json(cluster: Cluster, run: Run) -> dict[str, Any]:
    """Return what a run's `run.json` says, which its chief has written to its volume; empty where it has none. Raises LauncherError."""
    if run.storage is None or cluster.get("PersistentVolumeClaim", run.claim) is None:
        return {}
    with _served(cluster, run, RUN_JSON, {RUN_JSON: (RUN_JSON,)}, is_probe=True) as (answer, pieces):
        if answer.status == http.client.NOT_FOUND:
            return {}
        content = io.BytesIO(b"".join(pieces))
    with tarfile.open(fileobj=content) as tar:
        file = tar.extractfile(tar.getmembers()[0])
        return (json_object(file.read()) if file else None) or {}


@contextlib.contextmanager
def _served(
    cluster: Cluster, run: Run, artifact: str, paths: Mapping[str, Sequence[str]], *, is_probe: bool = False
) -> Iterator[tuple[http.client.HTTPResponse, Iterator[bytes]]]:
    """Give the answer of a pod that has the run's volume, OK or NOT_FOUND, and its content in pieces; the pod is gone afterwards."""
    token, doing = secrets.token_urlsafe(32), f"reading the {artifact} of {run.name}"
    with _quiet(), helper_pod.serving(cluster, run, _command(run, token, paths), doing, is_probe=is_probe) as pod:
        answer, reads = _answer(cluster, pod, artifact, token)
        with contextlib.closing(answer), reads:
            if answer.status not in {http.client.OK, http.client.NOT_FOUND}:
                raise LauncherError(f"{doing}: the pod {pod} answered {answer.status}", "try again")
            yield answer, _pieces(answer, reads, pod)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the client's threads, which carry a connection, from writing a traceback where that is closed: the reader is told."""
    before = threading.excepthook

    def report_exception(ended: threading.ExceptHookArgs) -> None:
        if ended.thread is None or not ended.thread.name.startswith("Kubernetes port forward"):
            before(ended)

    threading.excepthook = report_exception
    try:
        yield
    finally:
        threading.excepthook = before


def _of_jobs(cluster: Cluster, name: str) -> Run | None:
    """Return as much of a run as it takes to mount its volume, from a Job of it: kubectl alone has applied it."""
    for job in cluster.listed("Job", status_source.labels_of(name)):
        pod = job["spec"]["template"]["spec"]
        claims = claims_of(pod)
        claim = cluster.get("PersistentVolumeClaim", claims[RUN_VOLUME]) if RUN_VOLUME in claims else None
        if claim is None:
            continue
        [access, *_] = claim["spec"]["accessModes"]
        options = {
            "claim": claims[RUN_VOLUME],
            "user": pod.get("securityContext", {}).get("runAsUser") or USER,
            "image_pull_secrets": [one["name"] for one in pod.get("imagePullSecrets") or ()],
            "node_selector": pod.get("nodeSelector") or {},
            "tolerations": pod.get("tolerations") or [],
        }
        image = pod["containers"][0]["image"]
        head = {"version": 1, "name": name, "image": image, "command": ["true"]}
        spec = ClusterSpec.model_validate({**head, "storage": {"access": access}, "kubernetes": options})
        return Run(spec, planner.plan(spec, "kubernetes", run_dir=f"{CONTAINER_RUNS}/{name}"), image)
    return None


def _command(run: Run, token: str, paths: Mapping[str, Sequence[str]]) -> list[str]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    text = Path(archive.__file__).read_text(encoding="utf-8")
    return ["python", "-c", text, f"{CONTAINER_RUNS}/{run.name}", json.dumps(paths), digest, str(_PORT), str(_IDLE)]


def _answer(cluster: Cluster, pod: str, artifact: str, token: str) -> tuple[http.client.HTTPResponse, RawIOBase]:
    """Ask the pod's server, which may still be starting; return its answer, and where to write that it is read."""
    deadline = time.monotonic() + _ANSWER_TIMEOUT
    output = ""
    while True:
        try:
            # Not before it listens: the client's thread of a connection that is refused ends with a traceback.
            output = cluster.log(pod, TRAINER, [], timeout=_ANSWER_TIMEOUT).decode("utf-8", "replace")
            if archive.LISTENING not in output:
                raise ConnectionError("its server is not listening yet")
            return _ask(cluster, pod, artifact, token)
        except ForbiddenError:
            raise
        except _NOT_YET as error:
            if time.monotonic() > deadline:
                last = " | ".join(output.splitlines()[-_LINES:]) or "nothing"
                raise LauncherError(
                    f"the pod {pod} does not answer within {_ANSWER_TIMEOUT:.0f} s: {str(error) or type(error).__name__}; it has written: {last}",
                    "try again",
                ) from error
            time.sleep(_RETRY_INTERVAL)


def _ask(cluster: Cluster, pod: str, artifact: str, token: str) -> tuple[http.client.HTTPResponse, RawIOBase]:
    # A client of its own: while one opens a stream it is of no other use.
    api = CoreV1Api(ApiClient(configuration=cluster.client.configuration))
    with translate_errors(f"forwarding a port to the pod {pod}"):
        try:
            stream: Any = portforward(api.connect_get_namespaced_pod_portforward, pod, cluster.namespace, ports=str(_PORT))
        except ApiException as error:
            raise _meant(error) from error
    connection = http.client.HTTPConnection("localhost", _PORT)
    connection.sock = stream.socket(_PORT)
    connection.sock.settimeout(_IDLE)
    reads = connection.sock.makefile("wb", buffering=0)
    try:
        connection.request("GET", f"/{artifact}", headers={archive.TOKEN_HEADER: token, "Connection": "close"})
        return connection.getresponse(), reads
    except BaseException:
        reads.close()
        connection.close()
        raise


def _meant(error: Any) -> Any:
    """Return what the client has made an ApiException without a status of: an interrupt, or the API server's answer."""
    cause = error.__context__
    if isinstance(cause, KeyboardInterrupt | SystemExit):
        return cause
    status = getattr(cause, "status_code", None)
    if status is None:
        return error
    answered = ApiException(status=status, reason=cause.status_message)
    answered.body = (cause.resp_body or b"").decode("utf-8", "replace")
    return answered


def _pieces(answer: http.client.HTTPResponse, reads: RawIOBase, pod: str) -> Iterator[bytes]:
    read = 0
    with translate_errors(f"reading from the pod {pod}"):
        try:
            while data := answer.read(_PIECE):
                windows, read = read // archive.WINDOW, read + len(data)
                reads.write(b"." * (read // archive.WINDOW - windows))
                yield data
        except http.client.HTTPException as error:  # a chunk that is missing
            raise LauncherError(f"the pod {pod} ended while it was read from", "try again") from error
