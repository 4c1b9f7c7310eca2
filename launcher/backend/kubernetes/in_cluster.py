"""A client of the API server for pods, with the pod's service account. It only needs urllib3: the trainer's image lacks the official client."""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from launcher.errors import LauncherError
from launcher.plan.addresses import url_host

# https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SCHEME = "https"
# Keyword of a call -> its name in the API.
_QUERY = {
    "label_selector": "labelSelector",
    "field_selector": "fieldSelector",
    "resource_version": "resourceVersion",
    "timeout_seconds": "timeoutSeconds",
    "watch": "watch",
    "allow_watch_bookmarks": "allowWatchBookmarks",
    "dry_run": "dryRun",
    "field_manager": "fieldManager",
}


class RefusedError(Exception):
    """The API server refuses a request, with an HTTP `status` and `reason`, and a `body` with the message."""

    def __init__(self, status: int, reason: str | None, body: bytes) -> None:
        super().__init__(f"({status}) {reason}")
        self.status, self.reason, self.body = status, reason, body


class InClusterClient:
    """Sends requests like `kubernetes.dynamic.DynamicClient`: method, path, query parameters by their Python names, and body."""

    def __init__(self, connections: int) -> None:
        """Send nothing yet. Raises LauncherError outside a pod with a service account."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port or not (SERVICE_ACCOUNT / "token").is_file():
            raise LauncherError(
                "this pod has no service account, with which it would reach its cluster",
                "see automountServiceAccountToken of the pod and of its account",
            )
        self._account, self._root = SERVICE_ACCOUNT, f"{_SCHEME}://{url_host(host)}:{port}"
        retries = urllib3.Retry(1, redirect=False)
        self._pool = urllib3.PoolManager(ca_certs=str(SERVICE_ACCOUNT / "ca.crt"), maxsize=connections, retries=retries)

    @functools.cached_property
    def client(self) -> Any:
        """The official client with the same account, to open streams."""
        from kubernetes.client import ApiClient

        from launcher.backend.kubernetes import credentials

        return ApiClient(configuration=credentials.configuration(None))

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        header_params: Mapping[str, str] | None = None,
        query_params: Sequence[tuple[str, str]] = (),
        serialize: bool = False,
        _request_timeout: tuple[float, float] = (5, 30),
        **query: Any,
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer, with its body not read yet. Raises RefusedError, and urllib3's HTTPError without an answer."""
        assert not serialize  # noqa: S101  for the other client
        parameters = [*query_params, *((_QUERY[key], str(value)) for key, value in query.items() if value is not None)]
        # Read for each request: the kubelet renews it.
        token = (self._account / "token").read_text(encoding="ascii").strip()
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}", **(header_params or {})}
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        connect, read = _request_timeout
        answer = self._pool.request(
            method.upper(),
            f"{self._root}/{path.lstrip('/')}" + (f"?{urlencode(parameters)}" if parameters else ""),
            body=content,
            headers=headers | ({"Content-Type": content_type} if content is not None else {}),
            timeout=urllib3.Timeout(connect=connect, read=read),
            preload_content=False,
        )
        if answer.status >= 400:
            raise RefusedError(answer.status, answer.reason, answer.data)
        return answer
