"""The objects of a run's attendant: a Job whose pod watches the run in place of a launcher, its service account, and that account's rights (RBAC). Pure."""

from launcher.errors import UsageError
from launcher.images import attendant_image
from launcher.plan.task_groups import groups
from launcher.render.kubernetes import network, pods
from launcher.render.kubernetes.jobs import time_to_live
from launcher.render.kubernetes.objects import ATTENDANT, Object, Run, checked, metadata, pod_metadata, provenance, resource_list, selector
from launcher.spec.kubernetes import Attendant
from launcher.spec.models import ClusterSpec
from launcher.spec.quantities import parse_duration

MODULE = "launcher.backend.kubernetes.attendant"
# How often the Job may replace its pod, e.g. on nodes that come and go. Every ended pod counts: a pod failure policy could ignore
# some, but with one the Job does not replace pods of lost nodes.
_MAX_REPLACEMENTS = 1000
_TOLERATION_SECONDS = 30  # seconds after the loss of its node until the pod is replaced
_GRACE_PERIOD = 10  # seconds
_REQUESTS, _LIMITS = {"cpu": "50m", "memory": "96Mi"}, {"cpu": "1", "memory": "256Mi"}
_WEBHOOK, _URL = "/run/secrets/webhook", "url"  # the directory and the file with the URL of the spec's webhook
_RBAC = "rbac.authorization.k8s.io"


def check_namespace(spec: ClusterSpec) -> None:
    """Raise UsageError if rendered objects need `kubernetes.namespace` and the spec lacks it: the RoleBinding has to name it."""
    options = spec.kubernetes
    if options.attendant is not None and options.attendant.service_account is None and options.namespace is None:
        raise UsageError(
            "the attendant's RoleBinding has to name the namespace of its account, and kubernetes.namespace is not given",
            "add `--set kubernetes.namespace=NAME`, or write `namespace` in the file; or create an account, and name it in `attendant.service_account`",
        )


def account(run: Run) -> list[Object]:
    """Return the attendant's service account with its rights, and the NetworkPolicy by which it reaches the API server."""
    attendant = run.options.attendant
    if attendant is None:
        return []
    return [*([] if attendant.service_account else _rights(run)), _policy(run)]


def job(run: Run) -> list[Object]:
    """Return the Job of the attendant: it ends with the run."""
    attendant = run.options.attendant
    if attendant is None:
        return []
    spec: Object = {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": _MAX_REPLACEMENTS,
        **time_to_live(run),
        "template": _template(run, attendant),
    }
    head = metadata(run, name_of(run), ATTENDANT, annotations=provenance(run))
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": spec}]


def name_of(run: Run) -> str:
    """Return the name of all of the attendant's objects."""
    return checked(f"{run.name}-{ATTENDANT}")


def _template(run: Run, attendant: Attendant) -> Object:
    limits = run.spec.limits
    quantities = resource_list(attendant.cpu, attendant.memory)
    command = [
        *("python", "-I", "-m", MODULE, run.name),
        *("--node-lost", f"{parse_duration(limits.node_lost):g}"),
        *("--start-timeout", f"{parse_duration(limits.start_timeout):g}"),
    ]
    webhook = run.spec.notify.webhook if run.spec.notify else None
    if webhook is not None:
        command += ["--webhook", f"{_WEBHOOK}/{_URL}", *(["--allow-http"] if webhook.allow_http else [])]
    container = pods.base_container(run, ATTENDANT, command) | {
        "image": attendant_image(run.spec),
        "resources": {"requests": _REQUESTS | quantities, "limits": _LIMITS | quantities},
    }
    lost_node = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
        for taint in ("not-ready", "unreachable")
    ]
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_PERIOD,
        **pods.hardened_pod_fields(run),
        "automountServiceAccountToken": True,
        "serviceAccountName": attendant.service_account or name_of(run),
        **({"nodeSelector": dict(run.options.node_selector)} if run.options.node_selector else {}),
        "tolerations": [*lost_node, *pods.tolerations(run.options)],
        "containers": [container],
    }
    if webhook is not None:
        container["volumeMounts"] = [{"name": "webhook", "mountPath": _WEBHOOK, "readOnly": True}]
        # Optional: without the Secret the attendant does everything else.
        source = {"secretName": webhook.secret, "items": [{"key": webhook.key, "path": _URL}], "optional": True}
        spec["volumes"] = [{"name": "webhook", "secret": source}]
    return pods.with_overrides(run, ATTENDANT, {"metadata": pod_metadata(run, ATTENDANT), "spec": spec})


def _rights(run: Run) -> list[Object]:
    """Return the account with its Role and RoleBinding."""
    name = name_of(run)
    head = metadata(run, name, ATTENDANT)
    # A subject must have a namespace. If the spec has none, `kubectl apply -k` or the launcher adds that of the context.
    namespace = {"namespace": run.options.namespace} if run.options.namespace else {}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head, "automountServiceAccountToken": False},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": head, "rules": _rules(run)},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": head,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, **namespace}],
        },
    ]


def _rules(run: Run) -> list[Object]:
    """Return the rules of the Role (also in docs/kubernetes-attendant-role.yaml). Jobs are restricted by name; pod names are not known in advance."""
    is_set = run.options.gang == "jobset"
    job_names = [] if is_set else [f"{run.name}-{group.role}" for group in groups(run.plan)]
    rules = [
        _rule("batch", "jobs", "list", "watch"),
        _rule("batch", "jobs", "get", "patch", names=[*job_names, name_of(run)]),
        _rule("", "pods", "get", "list", "watch"),
        _rule("", "pods/log", "get"),
        _rule("", "pods/status", "patch"),
        _rule("", "events", "list"),
        _rule("", "persistentvolumeclaims", "get", "list"),
        _rule("", "configmaps", "get", "patch", names=[f"{run.name}-record"]),
    ]
    return [*rules, _rule("jobset.x-k8s.io", "jobsets", "get", "patch", names=[run.name])] if is_set else rules


def _rule(group: str, resource: str, *verbs: str, names: list[str] | None = None) -> Object:
    return {"apiGroups": [group], "resources": [resource], **({"resourceNames": names} if names else {}), "verbs": list(verbs)}


def _policy(run: Run) -> Object:
    """Return the policy of the attendant: nothing may reach it, and it may reach the API server even if the namespace denies all egress.

    It allows every TCP port: clusters differ in the API server's address and port, and in whether a policy sees these or those of its Service.
    A webhook may be anywhere, and needs DNS.
    """
    notify = run.spec.notify
    ports = [{"protocol": "TCP"}, *(network.DNS if notify is not None and notify.webhook is not None else [])]
    spec = {
        "podSelector": {"matchLabels": selector(run, ATTENDANT)},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [{"ports": ports}],
    }
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(run, name_of(run), ATTENDANT), "spec": spec}
