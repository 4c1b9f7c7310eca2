"""The API server as a pod reaches it by the account that the cluster gave it: over urllib3 alone, as the trainer's image has no client of Kubernetes."""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from launcher.errors import LauncherError

# https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
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
    """The API server refuses a request: its HTTP `status` and `reason`, and the `body` in which it says why."""

    def __init__(self, status: int, reason: str | None, body: bytes) -> None:
        super().__init__(f"({status}) {reason}")
        self.status, self.reason, self.body = status, reason, body


class Api:
    """Asks as `kubernetes.dynamic.DynamicClient` does: a path of the API by its method, query and body by their Python names."""

    def __init__(self, connections: int) -> None:
        """Ask nothing yet. Raises LauncherError outside a pod that has an account."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port or not (ACCOUNT / "token").is_file():
            raise LauncherError(
                "this pod has no service account, by which it would reach its cluster",
                "see automountServiceAccountToken of the pod and of its account",
            )
        self._account, self._root = ACCOUNT, f"{_SCHEME}://{f'[{host}]' if ':' in host else host}:{port}"
        self._pool = urllib3.PoolManager(ca_certs=str(ACCOUNT / "ca.crt"), maxsize=connections, retries=urllib3.Retry(1, redirect=False))

    @functools.cached_property
    def client(self) -> Any:
        """The official client by the same account, for what opens streams."""
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
        """Return the answer, whose body is still to be read. Raises RefusedError, and urllib3's HTTPError where there is no answer."""
        assert not serialize  # noqa: S101  for the other client
        asked = [*query_params, *((_QUERY[key], str(value)) for key, value in query.items() if value is not None)]
        # Read each time: the kubelet renews it.
        token = (self._account / "token").read_text(encoding="ascii").strip()
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}", **(header_params or {})}
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        connect, read = _request_timeout
        answer = self._pool.request(
            method.upper(),
            f"{self._root}/{path.lstrip('/')}" + (f"?{urlencode(asked)}" if asked else ""),
            body=content,
            headers=headers | ({"Content-Type": content_type} if content is not None else {}),
            timeout=urllib3.Timeout(connect=connect, read=read),
            preload_content=False,
        )
        if answer.status >= 400:
            raise RefusedError(answer.status, answer.reason, answer.data)
        return answer
