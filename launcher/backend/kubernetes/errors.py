"""Errors of a cluster, each with a remedy: an action that is not permitted, an object that is not there or that another has changed."""

import json
import re
from typing import Any

from launcher.errors import LauncherError, UsageError
from launcher.runs.status import RunUnreachableError

_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[\w./-]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
# Message of the API server -> what is wrong, what to do. {0} is what the pattern's group found.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (r'namespaces "([\w.-]+)" not found', "there is no namespace {0}", "make it: kubectl create namespace {0}, or write another kubernetes.namespace"),
    (r"attempting to grant RBAC permissions not currently held",
     "you may not give the attendant what you may not do yourself",
     "have docs/kubernetes-attendant-role.yaml applied and bound to you, or name an account in kubernetes.attendant.service_account"),
    (r"because it is being terminated", "the namespace is being deleted", "wait until it is gone and make it again, or use another"),
    (r'conflict with "([^"]+)"', "{0} has set other values there", "undo them, or delete the object and start again"),
    (r"persistentvolumeclaims.*spec(?:: Forbidden)?: .*immutable|spec is immutable after creation",
     "the volume is there, and a claim cannot be changed", "leave `storage` as it was, or delete the data: launcher down --delete-data"),
    (r'violates PodSecurity "?([\w:.-]+)', "Pod Security {0} does not admit it", "leave out what kubernetes.overrides adds"),
    (r"exceeded quota: ([\w.-]+)", "the namespace's quota {0} is used up", "free some of it, or have it raised"),
    (r"(?:minimum|maximum) \S+ usage per", "a LimitRange of the namespace does not admit it",
     "write cpu and memory that it admits, for the role, `tensorboard` or `kubernetes.helper`"),
    (r"unknown field \"([\w.]+)\"|field not declared in schema", "the cluster does not know a field", "set kubernetes.version to the cluster's own"),
    (r"is invalid", "the cluster does not take it", "check kubernetes.overrides, and kubernetes.version"),
)  # fmt: skip


# A write of the API server's own that another one overtook: quotas count what is made, and are counted again meanwhile.
_OVERTAKEN = "the object has been modified; please apply your changes to the latest version"


class UnreachableError(LauncherError):
    """The API server does not answer, or not now; asked again it may."""

    lacking = "has not answered"


class CredentialsError(UnreachableError):
    """The API server does not know the user; it will after another login."""

    lacking = "has not accepted your credentials"


class ForbiddenError(LauncherError):
    """The cluster does not let the user do this. `rule` is the RBAC rule that is missing, as YAML."""

    def __init__(self, message: str, remedy: str, rule: str) -> None:
        super().__init__(message, remedy)
        self.rule = rule


def run_unreachable(run: str, error: LauncherError) -> RunUnreachableError:
    """Return the end of following a run whose cluster has not answered for too long."""
    return RunUnreachableError(f"{run} goes on, and cannot be followed any more: {error.message}", error.remedy)


def explain(error: Exception, doing: str) -> LauncherError:
    """Return the error for what the client raised while `doing`."""
    status = getattr(error, "status", None)
    answer = answer_of(error)
    if not isinstance(status, int) or status in {0, 429} or status >= 500:
        return UnreachableError(
            f"{doing}: the cluster does not answer: {answer}",
            "see that `kubectl get --raw /readyz` answers (KUBECONFIG, `kubectl config get-contexts`: which cluster)",
        )
    if status == 409 and _OVERTAKEN in answer:
        return UnreachableError(f"{doing}: the cluster has changed something at the same moment: {answer}", "try again")
    if status == 401:
        return CredentialsError(f"{doing}: authentication failed: {answer}", "log in to it again; `kubectl auth whoami` must answer")
    if status == 403 and (match := _FORBIDDEN.search(answer)):
        return _forbidden(match, doing)
    for pattern, message, remedy in _KNOWN:
        if match := re.search(pattern, answer):
            found = [group or "" for group in match.groups()] or [""]
            kind = UsageError if status in {400, 422} else LauncherError
            return kind(f"{doing}: {message.format(*found)}: {answer}", remedy.format(*found))
    return LauncherError(f"{doing}: {answer}", "the message above comes from the API server")


def no_access(namespace: str, doing: str = "", rule: str = "") -> ForbiddenError:
    """Return the error of a user who may do nothing in a namespace: most often it is mistyped, and the API server does not say whether it is there."""
    return ForbiddenError(
        f"{doing}: you may do nothing in the namespace {namespace}".removeprefix(": "),
        f"see that {namespace} is its name: --namespace, LAUNCHER_NAMESPACE, kubernetes.namespace, or the one of your context; "
        "where it is, have docs/kubernetes-role.yaml applied and bound to you there",
        rule,
    )


def answer_of(error: Exception) -> str:
    """Return what the API server or the way to it says, in one line."""
    body: Any = getattr(error, "body", None)
    try:
        message = json.loads(body).get("message") if body else None
    except (ValueError, AttributeError, TypeError):
        message = None
    text = message or getattr(error, "reason", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def _forbidden(match: re.Match[str], doing: str) -> ForbiddenError:
    found = match.groupdict()
    rule = f'{{apiGroups: ["{found["group"]}"], resources: ["{found["resource"]}"], verbs: ["{found["verb"]}"]}}'
    where = f" in the namespace {found['namespace']}" if found["namespace"] else ""
    kind = "Role" if found["namespace"] else "ClusterRole"
    return ForbiddenError(
        f"{doing}: {found['user']} may not {found['verb']} {found['resource']}{where}",
        f"have this rule added to a {kind} of yours: {rule}; docs/kubernetes.md, Permissions, lists all that are needed",
        rule,
    )
