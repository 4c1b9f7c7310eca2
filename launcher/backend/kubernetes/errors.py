"""Errors of a cluster, each with a remedy: e.g. a forbidden action, a missing object, a conflict."""

import json
import re
from typing import Any

from launcher.errors import LauncherError, UsageError
from launcher.runs.status import RunUnreachableError

_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[\w./-]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
# Message of the API server -> (message, remedy). {0} is the pattern's first group.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (r'namespaces "([\w.-]+)" not found', "there is no namespace {0}", "create it: kubectl create namespace {0}, or write another kubernetes.namespace"),
    (r"attempting to grant RBAC permissions not currently held",
     "you may not grant the attendant rights that you do not have",
     "have docs/kubernetes-attendant-role.yaml applied and bound to you, or name an account in kubernetes.attendant.service_account"),
    (r"because it is being terminated", "the namespace is being deleted", "wait until it is gone and create it again, or use another"),
    (r'conflict with "([^"]+)"', "{0} has set other values there", "undo them, or delete the object and start again"),
    (r"persistentvolumeclaims.*spec(?:: Forbidden)?: .*immutable|spec is immutable after creation",
     "the claim exists, and cannot be changed", "leave `storage` as it was, or delete the data: launcher down --delete-data"),
    (r'violates PodSecurity "?([\w:.-]+)', "Pod Security {0} does not admit it", "leave out what kubernetes.overrides adds"),
    (r"exceeded quota: ([\w.-]+)", "the namespace's quota {0} is used up", "free some of it, or have it raised"),
    (r"(?:minimum|maximum) \S+ usage per", "a LimitRange of the namespace does not admit it",
     "set cpu and memory within it, for the role, `tensorboard` or `kubernetes.helper`"),
    (r"unknown field \"([\w.]+)\"|field not declared in schema", "the cluster does not know a field", "set kubernetes.version to the cluster's own"),
    (r"is invalid", "the cluster does not take it", "check kubernetes.overrides, and kubernetes.version"),
)  # fmt: skip


# A conflict between two writes of the API server itself: e.g. creating an object updates a quota, which a controller updates too.
_CONFLICT = "the object has been modified; please apply your changes to the latest version"

# Of an internal error (500) of the API server: the webhook itself did not answer.
_WEBHOOK_FAILED = "failed calling webhook"


# Seconds for which a cluster may stop answering, for example while its API server is replaced. The run continues meanwhile.
UNREACHABLE_TIMEOUT = 600.0


class TransientError(LauncherError):
    """A request failed in a way that a retry may mend: the API server did not answer, or could not do it now. `problem` follows `the cluster`."""

    problem = "has not answered"


class ConflictError(TransientError):
    """The API server has refused a write because of another at the same moment; a retry may help."""

    problem = "has refused changes that conflict with others"


class WebhookError(TransientError):
    """The API server cannot ask an admission webhook, without which it changes nothing; a retry may help."""

    problem = "cannot ask an admission webhook"


class CredentialsError(TransientError):
    """The API server does not accept the credentials; another login may help."""

    problem = "has not accepted your credentials"


class ForbiddenError(LauncherError):
    """The user lacks a right. `rule` is the missing RBAC rule, as YAML."""

    def __init__(self, message: str, remedy: str, rule: str) -> None:
        super().__init__(message, remedy)
        self.rule = rule


def run_unreachable(run: str, error: LauncherError) -> RunUnreachableError:
    """Return the error that ends following a run whose cluster has not answered for too long."""
    return RunUnreachableError(f"{run} continues, but cannot be followed any more: {error.message}", error.remedy)


def explain(error: Exception, action: str) -> LauncherError:
    """Return the LauncherError for an error of the client; `action` is e.g. `listing pods`."""
    status = getattr(error, "status", None)
    answer = answer_of(error)
    if status == 500 and _WEBHOOK_FAILED in answer:
        return WebhookError(
            f"{action}: an admission webhook of the cluster does not answer: {answer}",
            "have its pods repaired; kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations lists the webhooks",
        )
    if not isinstance(status, int) or status in {0, 429} or status >= 500:
        return TransientError(
            f"{action}: the cluster does not answer: {answer}",
            "see that `kubectl get --raw /readyz` answers (KUBECONFIG, `kubectl config get-contexts`: which cluster)",
        )
    if status == 409 and _CONFLICT in answer:
        return ConflictError(f"{action}: the cluster has changed an object at the same moment: {answer}", "try again")
    if status == 401:
        return CredentialsError(f"{action}: authentication failed: {answer}", "log in to it again; `kubectl auth whoami` must answer")
    if status == 403 and (match := _FORBIDDEN.search(answer)):
        return _forbidden(match, action)
    for pattern, message, remedy in _KNOWN:
        if match := re.search(pattern, answer):
            found = [group or "" for group in match.groups()] or [""]
            kind = UsageError if status in {400, 422} else LauncherError
            return kind(f"{action}: {message.format(*found)}: {answer}", remedy.format(*found))
    return LauncherError(f"{action}: {answer}", "the message above comes from the API server")


def no_access(namespace: str, action: str = "", rule: str = "") -> ForbiddenError:
    """Return the error of a user without any right in a namespace. Its name may be mistyped: the API server does not report whether it exists."""
    return ForbiddenError(
        f"{action}: you have no rights in the namespace {namespace}".removeprefix(": "),
        f"check the name {namespace}: --namespace, LAUNCHER_NAMESPACE, kubernetes.namespace, or the one of your context; "
        "if it is right, have docs/kubernetes-role.yaml applied and bound to you there",
        rule,
    )


def answer_of(error: Exception) -> str:
    """Return the message of the API server, or of the connection to it, in one line."""
    body: Any = getattr(error, "body", None)
    try:
        message = json.loads(body).get("message") if body else None
    except (ValueError, AttributeError, TypeError):
        message = None
    text = message or getattr(error, "reason", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def _forbidden(match: re.Match[str], action: str) -> ForbiddenError:
    found = match.groupdict()
    rule = f'{{apiGroups: ["{found["group"]}"], resources: ["{found["resource"]}"], verbs: ["{found["verb"]}"]}}'
    where = f" in the namespace {found['namespace']}" if found["namespace"] else ""
    kind = "Role" if found["namespace"] else "ClusterRole"
    return ForbiddenError(
        f"{action}: {found['user']} may not {found['verb']} {found['resource']}{where}",
        f"have this rule added to a {kind} of yours: {rule}; docs/kubernetes.md, Permissions, lists all that are needed",
        rule,
    )
