"""The API of one namespace, of the cluster in the user's kubeconfig or of the pod's own cluster. Objects are plain JSON."""

import contextlib
import importlib.util
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import urllib3

from launcher.backend.kubernetes import in_cluster
from launcher.backend.kubernetes.errors import CredentialsError, ForbiddenError, explain, no_access
from launcher.errors import LauncherError, UsageError

Object = dict[str, Any]

# The field manager of the fields that `up` sets. https://kubernetes.io/docs/reference/using-api/server-side-apply/#managers
_MANAGER = "launcher"


def _client_errors() -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """Return the official client's errors of requests, and of kubeconfigs; none in the trainer's image, which lacks the client."""
    if importlib.util.find_spec("kubernetes") is None:
        return (), ()
    from kubernetes.client.exceptions import OpenApiException
    from kubernetes.config import ConfigException

    return (OpenApiException,), (ConfigException,)


_REQUEST_ERRORS, _CONFIG_ERRORS = _client_errors()
# Errors that every call may raise: of the API server, and of the connection to it.
ERRORS: tuple[type[Exception], ...] = (in_cluster.RefusedError, *_REQUEST_ERRORS, *_CONFIG_ERRORS, urllib3.exceptions.HTTPError, OSError)
# Seconds to connect, and to wait for an answer.
TIMEOUT = (5, 30)

# Seconds between two renewals of an expired login, at the least.
_LOGIN_INTERVAL = 5.0

# Open connections to an API server, more than are used at once (two stops of a run that each follow 32 logs, and readers of 8 logs each). The
# client discards connections beyond this number, with a warning on stderr.
_CONNECTIONS = 128

# Kind -> its path and name in the API, for all objects that the launcher writes or reads.
_CORE = "api/v1"
KINDS: dict[str, tuple[str, str]] = {
    "PersistentVolumeClaim": (_CORE, "persistentvolumeclaims"),
    "ConfigMap": (_CORE, "configmaps"),
    "Secret": (_CORE, "secrets"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "Service": (_CORE, "services"),
    "Job": ("apis/batch/v1", "jobs"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "ServiceAccount": (_CORE, "serviceaccounts"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Pod": (_CORE, "pods"),
    "Event": (_CORE, "events"),
    "ResourceQuota": (_CORE, "resourcequotas"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    # Kueue 0.15 has both; later versions drop the older, earlier versions lack the newer.
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "Workload (v1beta1)": ("apis/kueue.x-k8s.io/v1beta1", "workloads"),
}
# Resources of which a user with runs in a namespace may access at least one.
_RUN_RESOURCES = frozenset({"jobs", "configmaps", "*"})
# https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


def version_numbers(version: Object) -> tuple[int, int]:
    """Return the major and minor version from an API server's /version, whose minor may be `29+`."""
    return int(re.sub(r"\D.*", "", version["major"])), int(re.sub(r"\D.*", "", version["minor"]))


def claims_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the claims that a pod's specification mounts, by the name of the volume."""
    return {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod.get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }


class Cluster:
    """One namespace. Calls raise LauncherError with a remedy: TransientError if a retry may help."""

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        with translate_errors("reading the kubeconfig"):
            self.context, own = _context(context)
            self._log_in()
            self.namespace = namespace or own
        self._logging_in = threading.Lock()
        self._user: str | None = None
        # The cluster's clock minus time.monotonic(); until the API server has answered, this machine's.
        self._clock_offset = time.time() - time.monotonic()
        self._lacks_access: bool | None = None

    def description(self) -> str:
        """Return the namespace and the context as text."""
        return f"namespace {self.namespace}" + (f" of {self.context}" if self.context else "")

    def now(self) -> float:
        """Return the time by the API server's clock, which sets the times of objects, in seconds since the epoch. It may be up to a second late.

        Before the first answer with a time, it is this machine's.
        """
        return time.monotonic() + self._clock_offset

    def request(self, method: str, path: str, *, action: str, **options: Any) -> Any:
        """Send a request to the API server; return the parsed JSON of its answer."""
        try:
            with translate_errors(action):
                return json.loads(self._send(method, path, **options).data)
        except ForbiddenError as error:
            if f"/namespaces/{self.namespace}/" in path and self.lacks_access():
                raise no_access(self.namespace, action, error.rule) from error.__cause__
            raise

    def _log_in(self) -> None:
        self._dynamic, self._logged_in = _client(self.context), time.monotonic()

    @property
    def client(self) -> Any:
        """The official client with these credentials, to open streams."""
        return self._dynamic.client

    def _send(self, method: str, path: str, **options: Any) -> Any:
        options = {"serialize": False, "_request_timeout": TIMEOUT, **options}
        client = self._dynamic
        try:
            answer = client.request(method, path, **options)
        except ERRORS as error:
            if getattr(error, "status", None) != 401 or not self._log_in_again(client):
                raise
            answer = self._dynamic.request(method, path, **options)
        with contextlib.suppress(TypeError, ValueError):
            self._clock_offset = parsedate_to_datetime(answer.headers.get("Date")).timestamp() - time.monotonic()
        return answer

    def _log_in_again(self, used: Any) -> bool:
        """Log in with the kubeconfig as it is now, unless another thread has just done so; return whether a retry may help."""
        with self._logging_in:
            if self._dynamic is not used:
                return True
            if time.monotonic() < self._logged_in + _LOGIN_INTERVAL:
                return False
            try:
                self._log_in()
            except LauncherError as error:
                raise CredentialsError(error.message, error.remedy) from error
            except Exception as error:  # a file that is being written may have any content
                raise CredentialsError(f"reading the kubeconfig: {error}", "log in again; `kubectl auth whoami` must answer") from error
            return True

    def user(self) -> str:
        """Return the user's name in the cluster; empty if the cluster does not report it, as before Kubernetes 1.28."""
        if self._user is None:
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            try:
                review = self.request("post", "/apis/authentication.k8s.io/v1/selfsubjectreviews", action="asking for your name", body=body)
            except LauncherError as error:
                if http_status(error) not in {403, 404}:
                    raise
                review = {}
            self._user = str(review.get("status", {}).get("userInfo", {}).get("username", ""))
        return self._user

    def lacks_access(self) -> bool:
        """Return whether the user has no rights in the namespace, which may not exist; False if the API server's answer is incomplete."""
        if self._lacks_access is None:
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": self.namespace}}
            status: Object = {}
            with contextlib.suppress(LauncherError):  # then it is not known
                path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
                status = self.request("post", path, action="asking for permissions", body=body).get("status") or {}
            known = bool(status) and not status.get("incomplete")
            rules = [rule.get("resources") or () for rule in status.get("resourceRules") or ()]
            self._lacks_access = known and all(_RUN_RESOURCES.isdisjoint(resources) for resources in rules)
        return self._lacks_access

    def path(self, kind: str, name: str = "") -> str:
        """Return the API's path of an object, or of all objects of a kind."""
        root, plural = KINDS[kind]
        return "/".join(filter(None, ["", root, "namespaces", self.namespace, plural, name]))

    def get(self, kind: str, name: str, **options: Any) -> Object | None:
        """Return an object, or None when there is none; `options` are those of `request`."""
        try:
            found: Object = self.request("get", self.path(kind, name), action=f"looking for {kind} {name}", **options)
        except LauncherError as error:
            if http_status(error) == 404:
                return None
            raise
        return found

    def has(self, kind: str, name: str) -> bool:
        """Return whether an object exists, without reading its content: a Secret's stays secret."""
        return self.get(kind, name, header_params={"Accept": _METADATA_ONLY}) is not None

    def list_objects(self, kind: str, labels: Mapping[str, str] | None = None, fields: Mapping[str, str] | None = None) -> list[Object]:
        """Return the objects of a kind that have all these labels and field values."""
        return self.list_with_version(kind, labels, fields)[0]

    def list_with_version(
        self, kind: str, labels: Mapping[str, str] | None = None, fields: Mapping[str, str] | None = None
    ) -> tuple[list[Object], str]:
        """Return the objects of a kind with these labels and field values, and the resource version from which a watch can start."""
        selectors = {"label_selector": _selector(labels), "field_selector": _selector(fields)}
        answer = self.request("get", self.path(kind), action=f"listing {KINDS[kind][1]}", **selectors)
        return list(answer.get("items") or ()), str((answer.get("metadata") or {}).get("resourceVersion") or "")

    def watch(self, kind: str, version: str, labels: Mapping[str, str], *, seconds: int) -> Iterator[Object]:
        """Watch the objects of a kind that have all the labels; return the events since a resource version as they come.

        The API server ends the watch after `seconds`. Raises LauncherError, also TransientError if it does not end by then.
        https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
        """
        action = f"watching {KINDS[kind][1]}"
        with translate_errors(action):
            answer = self._send(
                "get",
                self.path(kind),
                label_selector=_selector(labels),
                resource_version=version,
                watch="true",
                allow_watch_bookmarks="true",
                timeout_seconds=seconds,
                _request_timeout=(TIMEOUT[0], seconds + TIMEOUT[0]),
            )
        return (json.loads(line) for lines in _complete_lines(answer, action) for line in lines.split(b"\n"))

    def nodes(self) -> list[Object]:
        """Return the nodes of the cluster. Raises ForbiddenError if the user may not list them."""
        return list(self.request("get", "/api/v1/nodes", action="listing nodes").get("items") or ())

    def list_or_empty(self, kind: str, labels: Mapping[str, str] | None = None) -> list[Object]:
        """Return the objects of a kind; none if the cluster does not know the kind or the user may not list it."""
        try:
            return self.list_objects(kind, labels)
        except LauncherError as error:
            if http_status(error) in {403, 404}:
                return []
            raise

    def apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create an object, or change the existing one, by server-side apply: fields that others manage stay as they are."""
        name = str(manifest["metadata"]["name"])
        options: dict[str, Any] = {
            "content_type": "application/apply-patch+yaml",
            "field_manager": _MANAGER,
            "dry_run": "All" if dry_run else None,
        }
        action = f"checking {manifest['kind']} {name}" if dry_run else f"applying {manifest['kind']} {name}"
        applied: Object = self.request("patch", self.path(manifest["kind"], name), action=action, body=as_json(manifest), **options)
        return applied

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Create an object that does not exist yet."""
        name = manifest["metadata"].get("name") or manifest["metadata"]["generateName"]
        action = f"checking {manifest['kind']} {name}" if dry_run else f"creating {manifest['kind']} {name}"
        created: Object = self.request(
            "post", self.path(manifest["kind"]), action=action, body=manifest, field_manager=_MANAGER, dry_run="All" if dry_run else None
        )
        return created

    def replace(self, manifest: Object) -> Object:
        """Replace an object; if it has a `resourceVersion`, only if it was not changed since."""
        name = str(manifest["metadata"]["name"])
        replaced: Object = self.request(
            "put", self.path(manifest["kind"], name), action=f"changing {manifest['kind']} {name}", body=manifest, field_manager=_MANAGER
        )
        return replaced

    def patch(self, kind: str, name: str, patch: Object, *, subresource: str = "") -> None:
        """Merge a patch into an object."""
        path = self.path(kind, name) + (f"/{subresource}" if subresource else "")
        action = f"changing {kind} {name}"
        self.request("patch", path, action=action, body=patch, content_type="application/merge-patch+json", field_manager=_MANAGER)

    def delete(self, kind: str, name: str, *, grace: int | None = None, uid: str | None = None) -> None:
        """Delete an object and what it owns; do nothing if it is gone, or if its uid is not `uid`."""
        body: Object = {"propagationPolicy": "Background"} | ({} if grace is None else {"gracePeriodSeconds": grace})
        body |= {} if uid is None else {"preconditions": {"uid": uid}}
        try:
            self.request("delete", self.path(kind, name), action=f"deleting {kind} {name}", body=body)
        except LauncherError as error:
            if http_status(error) != 404 and (uid is None or http_status(error) != 409):
                raise

    def version(self) -> tuple[int, int]:
        """Return the API server's major and minor version."""
        return version_numbers(self.request("get", "/version", action="asking for the version"))

    def log(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> bytes:
        """Return the part of a container's log that `query` selects."""
        with translate_errors(f"reading the log of {pod}"):
            content: bytes = self._log(pod, container, query, timeout).data
        return content

    def follow_log(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> Iterator[bytes]:
        """Yield whole lines of a container's log as they come, until the container or the connection ends.

        Raises LauncherError, also TransientError if the container writes nothing for `timeout` seconds.
        """
        yield from _complete_lines(self._log(pod, container, [*query, ("follow", "true")], timeout), f"following the log of {pod}")

    def _log(self, pod: str, container: str, query: list[tuple[str, str]], timeout: float) -> Any:
        with translate_errors(f"reading the log of {pod}"):
            return self._send(
                "get",
                f"{self.path('Pod', pod)}/log",
                query_params=[("container", container), *query],
                header_params={"Accept": "*/*"},
                _request_timeout=(TIMEOUT[0], timeout),
            )


def _selector(wanted: Mapping[str, str] | None) -> str | None:
    return ",".join(f"{key}={value}" for key, value in (wanted or {}).items()) or None


def _complete_lines(answer: Any, action: str) -> Iterator[bytes]:
    """Yield whole lines of an answer as they come, one or several at once; an incomplete last line is left out."""
    partial = b""
    with translate_errors(action), contextlib.closing(answer):
        for piece in answer.stream():
            lines, end, partial = (partial + piece).rpartition(b"\n")
            if end:
                yield lines


@contextlib.contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Turn the client's errors in a `with` block into LauncherErrors with a remedy."""
    try:
        yield
    except _CONFIG_ERRORS as error:
        remedy = "set KUBECONFIG to the file that names your cluster; `kubectl config get-contexts` lists what it has"
        raise LauncherError(f"{action}: {error}", remedy) from error
    except ERRORS as error:
        raise explain(error, action) from error


def http_status(error: LauncherError) -> int | None:
    """Return the HTTP status of an error, or None if the API server has not answered."""
    status = getattr(error.__cause__, "status", None)
    return status if isinstance(status, int) else None


def _context(wanted: str | None) -> tuple[str | None, str]:
    """Return the context in use and its namespace; the context is None in a pod with a service account."""
    configured = wanted or os.environ.get("KUBECONFIG") or Path("~/.kube/config").expanduser().is_file()
    own = in_cluster.SERVICE_ACCOUNT / "namespace"
    if not configured and own.is_file():
        return None, own.read_text(encoding="utf-8").strip()
    from launcher.backend.kubernetes import credentials

    namespaces, current = credentials.namespaces()
    name = current if wanted is None else wanted
    if name not in namespaces:
        names = ", ".join(namespaces)
        missing = f"the kubeconfig has no context {name}" if name else "the kubeconfig has no current context"
        raise UsageError(missing, f"choose one of: {names}" if wanted is not None else f"choose one with --context: {names}")
    return name, namespaces[name] or "default"


def _client(context: str | None) -> Any:
    if context is None:
        return in_cluster.InClusterClient(_CONNECTIONS)
    from launcher.backend.kubernetes import credentials

    return credentials.client(context, _CONNECTIONS)


def as_json(document: Any) -> str:
    """Return a document as compact JSON text."""
    return json.dumps(document, separators=(",", ":"))
