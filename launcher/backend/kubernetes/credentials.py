"""The credentials with which this user reaches a cluster: those of the kubeconfig, or of this pod's service account."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import config, dynamic
from kubernetes.client import ApiClient, Configuration

from launcher.errors import LauncherError

# Seconds between two calls of a credential plugin, at the least. The client would call it before each request once a token is valid for less
# than five minutes, as some are from the start. A token that expires within these seconds is refused (401), and then the launcher logs in again.
_PLUGIN_INTERVAL = 30.0


def contexts() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the contexts of the kubeconfig, and the one in use."""
    listed: tuple[list[dict[str, Any]], dict[str, Any]] = config.list_kube_config_contexts(config_file=os.environ.get("KUBECONFIG"))
    return listed


def client(context: str, connections: int) -> dynamic.DynamicClient:
    """Return the official client of a context's cluster, with up to `connections` kept open."""
    settings = configuration(context)
    settings.retries = 1
    settings.connection_pool_maxsize = connections
    # The launcher knows all paths, so discovery is not needed.
    return dynamic.DynamicClient(ApiClient(configuration=settings), discoverer=lambda _client, _cache: None)


def configuration(context: str | None) -> Configuration:
    """Return the settings to reach the cluster of a context, None for the pod's own cluster. Raises LauncherError if a plugin gives no credential."""
    settings = Configuration()
    if context is None:
        config.load_incluster_config(client_configuration=settings)
        return settings
    with _logged_errors() as errors:
        config.load_kube_config(config_file=os.environ.get("KUBECONFIG"), context=context, client_configuration=settings)
    if errors:
        raise LauncherError(
            f"reading the kubeconfig: the plugin that has the credentials of the context {context} gives none: {'; '.join(errors)}",
            "install it, or log in again; `kubectl auth whoami` must answer",
        )
    if settings.refresh_api_key_hook:
        settings.refresh_api_key_hook = _throttled(settings.refresh_api_key_hook)
    return settings


def _throttled(refresh: Callable[[Configuration], None]) -> Callable[[Configuration], None]:
    """Return a refresh of credentials that runs at most once per interval and hides errors: the cluster refuses an expired token anyway."""
    due = time.monotonic() + _PLUGIN_INTERVAL

    def throttled(settings: Configuration) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _PLUGIN_INTERVAL
            with _logged_errors():
                refresh(settings)

    return throttled


@contextlib.contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """Yield the errors that the client logs in a `with` block: it only logs the failure of a plugin, and continues."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    own_thread = threading.get_ident()
    handler.addFilter(lambda record: record.thread == own_thread)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield errors
    finally:
        root.removeHandler(handler)
