"""Download of a run's files: a pod that mounts the volume serves them on its loopback address, to which a port is forwarded.

So the user needs no right to run commands in pods (`pods/exec`). The files stay private: other pods cannot reach a pod's loopback, and a user who may
forward ports lacks the token, which stays in this process; the pod only has its digest.
"""

import contextlib
import hashlib
import http.client
import io
import json
import secrets
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

from launcher.backend.kubernetes import helper_pod, port_forward, run_objects, status_reader
from launcher.backend.kubernetes.client import ERRORS, Cluster, claims_of, translate_errors
from launcher.backend.kubernetes.errors import ForbiddenError
from launcher.errors import LauncherError, UsageError
from launcher.files import json_object
from launcher.images import USER
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes.objects import TRAINER_CONTAINER, Run
from launcher.runs import archive
from launcher.runs.artifacts import ARTIFACT_DIRECTORIES, Artifact, ArtifactStream, missing_artifact_error
from launcher.spec.models import ClusterSpec
from launcher.spec.names import RUN_VOLUME

RUN_JSON = "run.json"
_PORT = 8080  # in the pod
_IDLE_TIMEOUT = 120.0  # seconds without a request or a read after which the pod exits
_ANSWER_TIMEOUT = 60.0  # seconds after the pod's start: a slow machine takes long to import Python's HTTP server
_RETRY_INTERVAL = 0.5
_SHOWN_LINES = 3  # last lines shown of a pod that does not answer
_CHUNK_SIZE = 1 << 16
_RETRIED_ERRORS: tuple[type[Exception], ...] = (http.client.HTTPException, LauncherError, *ERRORS)


@contextlib.contextmanager
def open_artifact(cluster: Cluster, name: str, run: Run | None, artifact: Artifact) -> Iterator[ArtifactStream]:
    """Open a run's artifact for a `with` block; `run` is None if its spec is not known. The pod is deleted afterwards.

    Raises UsageError if the run has no such artifact, LauncherError if the pod cannot be started or does not answer.
    """
    run = run or _run_of_jobs(cluster, name)
    if run is None:
        raise UsageError(
            f"{name} was not started by `launcher up`, and none of its Jobs exists any more, which would name its volume",
            f"copy its directory from a pod that mounts the volume: kubectl cp POD:{CONTAINER_RUNS}/{name} {name}",
        )
    if run.storage is None:
        raise UsageError(
            f"{name} has no volume, as its spec has no `storage`",
            "write `storage: {}`, and have the program write to $RUN_DIR; files on other volumes are read from there",
        )
    if cluster.get("PersistentVolumeClaim", run.claim) is None:
        raise missing_artifact_error(name, artifact, ())
    with _serve(cluster, run, artifact, ARTIFACT_DIRECTORIES) as (response, chunks):
        if response.status == http.client.NOT_FOUND:
            raise missing_artifact_error(run.name, artifact, json.loads(response.read()))
        directory = response.headers[archive.PATH_HEADER]
        where = f"{status_reader.claim_location(cluster, run.claim, run.name)}{directory}"
        yield ArtifactStream(where, chunks, int(response.headers[archive.SIZE_HEADER]))


def run_json(cluster: Cluster, run: Run) -> dict[str, Any]:
    """Return the content of the `run.json` that the chief has written to the volume; empty if there is none, or only a link. Raises LauncherError."""
    if run.storage is None or cluster.get("PersistentVolumeClaim", run.claim) is None:
        return {}
    with _serve(cluster, run, RUN_JSON, {RUN_JSON: (RUN_JSON,)}, is_probe=True) as (response, chunks):
        if response.status == http.client.NOT_FOUND:
            return {}
        content = io.BytesIO(b"".join(chunks))
    return _json_of_tar(content, run.name)


def _json_of_tar(content: io.BytesIO, run: str) -> dict[str, Any]:
    try:
        with tarfile.open(fileobj=content) as tar:
            files = [file for file in tar if file.isfile()]
            file = tar.extractfile(files[0]) if files else None
            return (json_object(file.read()) if file else None) or {}
    except tarfile.TarError as error:
        raise LauncherError(f"the {RUN_JSON} of {run} was not received whole: {error}", "try again") from error


@contextlib.contextmanager
def _serve(
    cluster: Cluster, run: Run, artifact: str, paths: Mapping[str, Sequence[str]], *, is_probe: bool = False
) -> Iterator[tuple[http.client.HTTPResponse, Iterator[bytes]]]:
    """Yield the response of a pod with the run's volume, OK or NOT_FOUND, and its content in chunks; the pod is deleted afterwards."""
    token, action = secrets.token_urlsafe(32), f"reading the {artifact} of {run.name}"
    with helper_pod.serving(cluster, run, _command(run, token, paths), action, is_probe=is_probe) as pod:
        response, acknowledgements = _response(cluster, pod, artifact, token)
        with contextlib.closing(response), acknowledgements:
            if response.status not in {http.client.OK, http.client.NOT_FOUND}:
                raise LauncherError(f"{action}: the pod {pod} answered {response.status}", "try again")
            yield response, _chunks(response, acknowledgements, pod)


def _run_of_jobs(cluster: Cluster, name: str) -> Run | None:
    """Return the part of a run that is needed to mount its volume, from one of its Jobs: `kubectl apply` leaves no record."""
    for job in cluster.list_objects("Job", status_reader.labels_of(name)):
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
        fields = {"version": 1, "name": name, "image": image, "command": ["true"]}
        spec = ClusterSpec.model_validate({**fields, "storage": {"access": access}, "kubernetes": options})
        return run_objects.run_of_spec(spec, image)
    return None


def _command(run: Run, token: str, paths: Mapping[str, Sequence[str]]) -> list[str]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    text = Path(archive.__file__).read_text(encoding="utf-8")
    return ["python3", "-c", text, f"{CONTAINER_RUNS}/{run.name}", json.dumps(paths), digest, str(_PORT), str(_IDLE_TIMEOUT)]


def _response(cluster: Cluster, pod: str, artifact: str, token: str) -> tuple[http.client.HTTPResponse, RawIOBase]:
    """Request an artifact from the pod's server, which may still be starting; return the response, and the stream for acknowledgements."""
    deadline = time.monotonic() + _ANSWER_TIMEOUT
    output = ""
    while True:
        try:
            # Connect only once it listens: a refused connection ends the client's thread with a traceback.
            output = cluster.log(pod, TRAINER_CONTAINER, [], timeout=_ANSWER_TIMEOUT).decode("utf-8", "replace")
            if archive.LISTENING not in output:
                raise ConnectionError("its server is not listening yet")
            return _request(cluster, pod, artifact, token)
        except ForbiddenError:
            raise
        except _RETRIED_ERRORS as error:
            if time.monotonic() > deadline:
                last_lines = " | ".join(output.splitlines()[-_SHOWN_LINES:]) or "nothing"
                raise LauncherError(
                    f"the pod {pod} does not answer within {_ANSWER_TIMEOUT:.0f} s: {str(error) or type(error).__name__}; its last output: {last_lines}",
                    "try again",
                ) from error
            time.sleep(_RETRY_INTERVAL)


def _request(cluster: Cluster, pod: str, artifact: str, token: str) -> tuple[http.client.HTTPResponse, RawIOBase]:
    connection = http.client.HTTPConnection("localhost", _PORT)
    connection.sock = port_forward.connect(cluster, pod, _PORT)
    connection.sock.settimeout(_IDLE_TIMEOUT)
    acknowledgements = connection.sock.makefile("wb", buffering=0)
    try:
        connection.request("GET", f"/{artifact}", headers={archive.TOKEN_HEADER: token, "Connection": "close"})
        return connection.getresponse(), acknowledgements
    except BaseException:
        acknowledgements.close()
        connection.close()
        raise


def _chunks(response: http.client.HTTPResponse, acknowledgements: RawIOBase, pod: str) -> Iterator[bytes]:
    received = 0
    with translate_errors(f"reading from the pod {pod}"):
        try:
            while data := response.read(_CHUNK_SIZE):
                acknowledged, received = received // archive.WINDOW, received + len(data)
                acknowledgements.write(b"." * (received // archive.WINDOW - acknowledged))
                yield data
        except http.client.HTTPException as error:  # a missing chunk
            raise LauncherError(f"the pod {pod} ended during the transfer", "try again") from error
