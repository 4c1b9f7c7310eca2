"""One namespace of the cluster that the user's kubeconfig names, or the one a pod is in: objects are plain JSON."""

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

# The owner of the fields that `up` sets, as the API server notes it.
MANAGER = "launcher"


def _of_the_client() -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """Return what the official client raises of a request, and of a kubeconfig; nothing in the trainer's image, which has none."""
    if importlib.util.find_spec("kubernetes") is None:
        return (), ()
    from kubernetes.client.exceptions import OpenApiException
    from kubernetes.config import ConfigException

    return (OpenApiException,), (ConfigException,)


_OF_REQUESTS, _OF_KUBECONFIGS = _of_the_client()
# Errors that every call may raise: the API server's own, and those of the way to it.
ERRORS: tuple[type[Exception], ...] = (in_cluster.RefusedError, *_OF_REQUESTS, *_OF_KUBECONFIGS, urllib3.exceptions.HTTPError, OSError)
# Seconds to connect, and for one answer.
TIMEOUT = (5, 30)

# A login that has expired is renewed no more often than this, in seconds.
_LOGIN_INTERVAL = 5.0

# Kept open to an API server, more than are used at once (two stops of a run that each follow 32 logs, and readers of 8 logs each): what is
# beyond it the client throws away, and complains on stderr.
_CONNECTIONS = 128

# Kind -> its path and name in the API, of the objects that a run consists of or is told by.
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
    # Kueue 0.15 and later have both, later ones the newer alone, earlier ones the older.
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "Workload (v1beta1)": ("apis/kueue.x-k8s.io/v1beta1", "workloads"),
}
# A user who has runs in a namespace may do something with one of these.
_OF_RUNS = frozenset({"jobs", "configmaps", "*"})
# https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
_HEAD_ALONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


def numbers(version: Object) -> tuple[int, int]:
    """Return the major and minor version of what an API server tells of its version, where a minor one may be `29+`."""
    return int(re.sub(r"\D.*", "", version["major"])), int(re.sub(r"\D.*", "", version["minor"]))


def claims_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the claims that a pod's specification mounts, by the name of the volume."""
    return {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in pod.get("volumes") or () if "persistentVolumeClaim" in one}


class Cluster:
    """One namespace. Calls raise LauncherError with a remedy: UnreachableError where asking again may help."""

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        with translate_errors("reading the kubeconfig"):
            self.context, own = _context(context)
            self._log_in()
            self.namespace = namespace or own
        self._logging_in = threading.Lock()
        self._user: str | None = None
        self._ahead = time.time() - time.monotonic()  # of time.monotonic; this machine's own, until the API server has told
        self._has_no_access: bool | None = None

    def description(self) -> str:
        """Return which cluster and namespace this is."""
        return f"namespace {self.namespace}" + (f" of {self.context}" if self.context else "")

    def now(self) -> float:
        """Return the time by the API server's clock, in seconds since the epoch: objects have their times by it. It may be up to a second late.

        Before the first answer, and where an answer tells no time, it is this machine's.
        """
        return time.monotonic() + self._ahead

    def request(self, method: str, path: str, *, doing: str, **options: Any) -> Any:
        """Ask the API server for a path; the answer is what its JSON says."""
        try:
            with translate_errors(doing):
                return json.loads(self._ask(method, path, **options).data)
        except ForbiddenError as error:
            if f"/namespaces/{self.namespace}/" in path and self.has_no_access():
                raise no_access(self.namespace, doing, error.rule) from error.__cause__
            raise

    def _log_in(self) -> None:
        self._dynamic, self._logged_in = _client(self.context), time.monotonic()

    @property
    def client(self) -> Any:
        """The official client with these credentials, for what opens streams."""
        return self._dynamic.client

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        options = {"serialize": False, "_request_timeout": TIMEOUT, **options}
        asked = self._dynamic
        try:
            answer = asked.request(method, path, **options)
        except ERRORS as error:
            if getattr(error, "status", None) != 401 or not self._has_logged_in_again(asked):
                raise
            answer = self._dynamic.request(method, path, **options)
        with contextlib.suppress(TypeError, ValueError):
            self._ahead = parsedate_to_datetime(answer.headers.get("Date")).timestamp() - time.monotonic()
        return answer

    def _has_logged_in_again(self, refused: Any) -> bool:
        """Log in with what the kubeconfig says now, unless another thread has just done so; return whether asking again may help."""
        with self._logging_in:
            if self._dynamic is not refused:
                return True
            if time.monotonic() < self._logged_in + _LOGIN_INTERVAL:
                return False
            try:
                self._log_in()
            except LauncherError as error:
                raise CredentialsError(error.message, error.remedy) from error
            except Exception as error:  # a file that is being written may be anything
                raise CredentialsError(f"reading the kubeconfig: {error}", "log in again; `kubectl auth whoami` must answer") from error
            return True

    def user(self) -> str:
        """Return the user's name as the cluster knows it; empty where it does not tell, as before Kubernetes 1.28."""
        if self._user is None:
            made = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            try:
                review = self.request("post", "/apis/authentication.k8s.io/v1/selfsubjectreviews", doing="asking who you are", body=made)
            except LauncherError as error:
                if status_of(error) not in {403, 404}:
                    raise
                review = {}
            self._user = str(review.get("status", {}).get("userInfo", {}).get("username", ""))
        return self._user

    def has_no_access(self) -> bool:
        """Return whether the user may do nothing in the namespace, which may not be there; False where the API server does not tell all."""
        if self._has_no_access is None:
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": self.namespace}}
            status: Object = {}
            with contextlib.suppress(LauncherError):  # then it may at least not be told so
                path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
                status = self.request("post", path, doing="asking for permissions", body=body).get("status") or {}
            known = bool(status) and not status.get("incomplete")
            rules = [rule.get("resources") or () for rule in status.get("resourceRules") or ()]
            self._has_no_access = known and all(_OF_RUNS.isdisjoint(resources) for resources in rules)
        return self._has_no_access

    def path(self, kind: str, name: str = "") -> str:
        """Return where the API has an object, or all of its kind."""
        root, plural = KINDS[kind]
        return "/".join(filter(None, ["", root, "namespaces", self.namespace, plural, name]))

    def get(self, kind: str, name: str) -> Object | None:
        """Return an object, or None when there is none."""
        found: Object | None = self._found(kind, name)
        return found

    def _found(self, kind: str, name: str, **options: Any) -> Any:
        """Return what the API server answers about an object, None when there is none."""
        try:
            return self.request("get", self.path(kind, name), doing=f"looking for {kind} {name}", **options)
        except LauncherError as error:
            if status_of(error) == 404:
                return None
            raise

    def has(self, kind: str, name: str) -> bool:
        """Return whether there is an object, without asking for its content, which is a Secret's own."""
        return self._found(kind, name, header_params={"Accept": _HEAD_ALONE}) is not None

    def listed(self, kind: str, labels: Mapping[str, str] | None = None, fields: Mapping[str, str] | None = None) -> list[Object]:
        """Return the objects of a kind that have all the labels, and these values of fields."""
        return self.listed_at(kind, labels, fields)[0]

    def listed_at(
        self, kind: str, labels: Mapping[str, str] | None = None, fields: Mapping[str, str] | None = None
    ) -> tuple[list[Object], str]:
        """Return the same, and of which resource version it is: from there on it can be watched."""
        asked = {"label_selector": _selector(labels), "field_selector": _selector(fields)}
        answer = self.request("get", self.path(kind), doing=f"listing {KINDS[kind][1]}", **asked)
        return list(answer.get("items") or ()), str((answer.get("metadata") or {}).get("resourceVersion") or "")

    def watch(self, kind: str, version: str, labels: Mapping[str, str], *, seconds: int) -> Iterator[Object]:
        """Open a watch of the objects of a kind that have all the labels, and return its events since a resource version, as they come.

        The API server ends it after `seconds`. Raises LauncherError, UnreachableError also where its end does not come.
        https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
        """
        doing = f"watching {KINDS[kind][1]}"
        with translate_errors(doing):
            answer = self._ask(
                "get",
                self.path(kind),
                label_selector=_selector(labels),
                resource_version=version,
                watch="true",
                allow_watch_bookmarks="true",
                timeout_seconds=seconds,
                _request_timeout=(TIMEOUT[0], seconds + TIMEOUT[0]),
            )
        return (json.loads(line) for lines in _complete_lines(answer, doing) for line in lines.split(b"\n"))

    def nodes(self) -> list[Object]:
        """Return the nodes of the cluster. Raises ForbiddenError where the user may not list them."""
        return list(self.request("get", "/api/v1/nodes", doing="listing nodes").get("items") or ())

    def listed_if_any(self, kind: str, labels: Mapping[str, str] | None = None) -> list[Object]:
        """Return the objects of a kind that the cluster may not know, or of which this user may not hear: none then."""
        try:
            return self.listed(kind, labels)
        except LauncherError as error:
            if status_of(error) in {403, 404}:
                return []
            raise

    def apply(self, made: Object, *, dry_run: bool = False) -> Object:
        """Make an object as given, or change what is there to it; fields that others set are theirs."""
        name = str(made["metadata"]["name"])
        options: dict[str, Any] = {"content_type": "application/apply-patch+yaml", "field_manager": MANAGER, **_dry(dry_run)}
        doing = f"checking {made['kind']} {name}" if dry_run else f"applying {made['kind']} {name}"
        applied: Object = self.request("patch", self.path(made["kind"], name), doing=doing, body=as_json(made), **options)
        return applied

    def create(self, made: Object, *, dry_run: bool = False) -> Object:
        """Make an object that is not there."""
        name = made["metadata"].get("name") or made["metadata"]["generateName"]
        doing = f"checking {made['kind']} {name}" if dry_run else f"making {made['kind']} {name}"
        created: Object = self.request("post", self.path(made["kind"]), doing=doing, body=made, field_manager=MANAGER, **_dry(dry_run))
        return created

    def replace(self, made: Object) -> Object:
        """Replace an object; with its `resourceVersion` only if nobody has changed it since."""
        name = str(made["metadata"]["name"])
        replaced: Object = self.request(
            "put", self.path(made["kind"], name), doing=f"changing {made['kind']} {name}", body=made, field_manager=MANAGER
        )
        return replaced

    def patch(self, kind: str, name: str, patch: Object, *, subresource: str = "") -> None:
        """Merge a patch into an object."""
        path = self.path(kind, name) + (f"/{subresource}" if subresource else "")
        doing = f"changing {kind} {name}"
        self.request("patch", path, doing=doing, body=patch, content_type="application/merge-patch+json", field_manager=MANAGER)

    def delete(self, kind: str, name: str, *, grace: int | None = None, uid: str | None = None) -> None:
        """Delete an object and what it owns; nothing happens when it is gone, or is not the one with that `uid` any more."""
        body: Object = {"propagationPolicy": "Background"} | ({} if grace is None else {"gracePeriodSeconds": grace})
        body |= {} if uid is None else {"preconditions": {"uid": uid}}
        try:
            self.request("delete", self.path(kind, name), doing=f"deleting {kind} {name}", body=body)
        except LauncherError as error:
            if status_of(error) != 404 and (uid is None or status_of(error) != 409):
                raise

    def version(self) -> tuple[int, int]:
        """Return the API server's major and minor version."""
        return numbers(self.request("get", "/version", doing="asking for the version"))

    def log(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> bytes:
        """Return what a container of a pod wrote, as `query` asks for it."""
        with translate_errors(f"reading the log of {pod}"):
            content: bytes = self._log(pod, container, query, timeout).data
        return content

    def log_to_the_end(self, pod: str, container: str, query: list[tuple[str, str]], *, timeout: float) -> Iterator[bytes]:
        """Yield whole lines of what a container of a pod wrote and writes, as they come, until it or the connection ends.

        Raises LauncherError, UnreachableError also where it writes nothing for `timeout` seconds.
        """
        yield from _complete_lines(self._log(pod, container, [*query, ("follow", "true")], timeout), f"following the log of {pod}")

    def _log(self, pod: str, container: str, query: list[tuple[str, str]], timeout: float) -> Any:
        with translate_errors(f"reading the log of {pod}"):
            return self._ask(
                "get",
                f"{self.path('Pod', pod)}/log",
                query_params=[("container", container), *query],
                header_params={"Accept": "*/*"},
                _request_timeout=(TIMEOUT[0], timeout),
            )


def _selector(wanted: Mapping[str, str] | None) -> str | None:
    return ",".join(f"{key}={value}" for key, value in (wanted or {}).items()) or None


def _complete_lines(answer: Any, doing: str) -> Iterator[bytes]:
    """Yield an answer as it comes, one whole line or several at once; what is cut off within a line is left out."""
    partial = b""
    with translate_errors(doing), contextlib.closing(answer):
        for piece in answer.stream():
            lines, end, partial = (partial + piece).rpartition(b"\n")
            if end:
                yield lines


@contextlib.contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Turn what the client raises in a `with` block into a LauncherError with a remedy."""
    try:
        yield
    except _OF_KUBECONFIGS as error:
        remedy = "set KUBECONFIG to the file that names your cluster; `kubectl config get-contexts` lists what it has"
        raise LauncherError(f"{doing}: {error}", remedy) from error
    except ERRORS as error:
        raise explain(error, doing) from error


def status_of(error: LauncherError) -> int | None:
    """Return the HTTP status behind an error, or None when the API server has not answered."""
    status = getattr(error.__cause__, "status", None)
    return status if isinstance(status, int) else None


def _dry(dry_run: bool) -> dict[str, Any]:
    return {"dry_run": "All"} if dry_run else {}


def _context(wanted: str | None) -> tuple[str | None, str]:
    """Return the context in use and its namespace; no context inside a cluster that gave its pod an account."""
    configured = wanted or "KUBECONFIG" in os.environ or Path("~/.kube/config").expanduser().is_file()
    own = in_cluster.ACCOUNT / "namespace"
    if not configured and own.is_file():
        return None, own.read_text(encoding="utf-8").strip()
    from launcher.backend.kubernetes import credentials

    contexts, active = credentials.contexts()
    if wanted is not None:
        found = next((one for one in contexts if one["name"] == wanted), None)
        if found is None:
            names = ", ".join(one["name"] for one in contexts)
            raise UsageError(f"the kubeconfig has no context {wanted}", f"choose one of: {names}")
        active = found
    return str(active["name"]), str(active["context"].get("namespace") or "default")


def _client(context: str | None) -> Any:
    if context is None:
        return in_cluster.Api(_CONNECTIONS)
    from launcher.backend.kubernetes import credentials

    return credentials.client(context, _CONNECTIONS)


def as_json(document: Any) -> str:
    """Return a document as compact JSON text."""
    return json.dumps(document, separators=(",", ":"))
