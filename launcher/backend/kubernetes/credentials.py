"""The credentials with which this user reaches a cluster: those of the kubeconfig, or of this pod's service account."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator

import yaml
from kubernetes import config, dynamic
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.kube_config import KubeConfigMerger

from launcher.errors import LauncherError

# Seconds between two calls of a credential plugin, at the least. The client would call it before each request once a token is valid for less
# than five minutes, as some are from the start. A token that expires within these seconds is refused (401), and then the launcher logs in again.
_PLUGIN_INTERVAL = 30.0


def namespaces() -> tuple[dict[str, str], str]:
    """Return the kubeconfig's contexts, name -> namespace (empty for the default), and its current context.

    The latter is empty if none is set, and may be a deleted one. Raises ConfigException without contexts.
    """
    with _translate_damage():
        merged = KubeConfigMerger(_kubeconfig()).config
        contexts = [context.value for context in merged.value["contexts"]] if merged else []
        if not contexts:
            raise config.ConfigException("there is none, or it has no contexts")
        listed = {str(context["name"]): str((context.get("context") or {}).get("namespace") or "") for context in contexts}
        return listed, str(merged.value.get("current-context") or "")


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
    with _translate_damage(), _logged_errors() as errors:
        config.load_kube_config(config_file=_kubeconfig(), context=context, client_configuration=settings)
    if errors:
        raise LauncherError(
            f"reading the kubeconfig: the plugin that has the credentials of the context {context} gives none: {'; '.join(errors)}",
            "install it, or log in again; `kubectl auth whoami` must answer",
        )
    if settings.refresh_api_key_hook:
        settings.refresh_api_key_hook = _throttled(settings.refresh_api_key_hook)
    return settings


def _kubeconfig() -> str:
    """Return the paths of kubeconfigs; an empty KUBECONFIG counts as not set, as for kubectl."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


@contextlib.contextmanager
def _translate_damage() -> Iterator[None]:
    """Raise ConfigException for a kubeconfig that the `with` block cannot read because it is no text, no YAML or has other types."""
    try:
        yield
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise config.ConfigException(f"it is damaged: {' '.join(str(error).split())}") from error


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
