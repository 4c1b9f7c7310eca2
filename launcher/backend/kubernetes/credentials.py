"""By which credentials this user reaches a cluster: those of the kubeconfig, or of the account that the cluster gave to this pod."""

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

# A plugin is asked for a new token no more often than this, in seconds. The client would before each request, once a token is of less than five
# minutes, as some are from the first. One that is of less than this is refused (401), and then another one is asked for.
_PLUGIN_INTERVAL = 30.0


def contexts() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the contexts of the kubeconfig, and the one in use."""
    listed: tuple[list[dict[str, Any]], dict[str, Any]] = config.list_kube_config_contexts(config_file=os.environ.get("KUBECONFIG"))
    return listed


def client(context: str, connections: int) -> dynamic.DynamicClient:
    """Return the official client of a context's cluster, which keeps so many connections open."""
    settings = configuration(context)
    settings.retries = 1
    settings.connection_pool_maxsize = connections
    # Paths are ours, so nothing has to be discovered first.
    return dynamic.DynamicClient(ApiClient(configuration=settings), discoverer=lambda _client, _cache: None)


def configuration(context: str | None) -> Configuration:
    """Return how to reach the cluster of a context of the kubeconfig, None inside one. Raises LauncherError where a plugin gives no credential."""
    settings = Configuration()
    if context is None:
        config.load_incluster_config(client_configuration=settings)
        return settings
    with _complaints() as complaints:
        config.load_kube_config(config_file=os.environ.get("KUBECONFIG"), context=context, client_configuration=settings)
    if complaints:
        raise LauncherError(
            f"reading the kubeconfig: the plugin that has the credentials of the context {context} gives none: {'; '.join(complaints)}",
            "install it, or log in again; `kubectl auth whoami` must answer",
        )
    if settings.refresh_api_key_hook:
        settings.refresh_api_key_hook = _throttled(settings.refresh_api_key_hook)
    return settings


def _throttled(refresh: Callable[[Configuration], None]) -> Callable[[Configuration], None]:
    """Return a refresh of credentials that is done now and then, and without a word: a token that is not good any more the cluster refuses."""
    due = time.monotonic() + _PLUGIN_INTERVAL

    def throttled(settings: Configuration) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _PLUGIN_INTERVAL
            with _complaints():
                refresh(settings)

    return throttled


@contextlib.contextmanager
def _complaints() -> Iterator[list[str]]:
    """Yield what the client logs as errors in a `with` block: a plugin that fails it goes on without."""
    complaints: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: complaints.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    own_thread = threading.get_ident()
    handler.addFilter(lambda record: record.thread == own_thread)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield complaints
    finally:
        root.removeHandler(handler)
