"""The attendant of a run, as objects: a Job whose pod does for the run what a launcher does while it watches; its account, and that account's rights (RBAC). Pure."""

from launcher.errors import UsageError
from launcher.images import attendant_image
from launcher.plan.role_groups import groups
from launcher.render.kubernetes import network, pods
from launcher.render.kubernetes.jobs import time_to_live
from launcher.render.kubernetes.objects import ATTENDANT, Object, Run, amounts, checked, metadata, pod_metadata, provenance, selector
from launcher.spec.kubernetes import Attendant
from launcher.spec.models import ClusterSpec
from launcher.spec.quantities import parse_duration

MODULE = "launcher.backend.kubernetes.attendant"
# So often the Job may replace its pod, on nodes that come and go. Each pod that ended counts: a failure policy, which could leave some out, would have
# the Job wait for a lost node.
_REPLACED = 1000
_LEAVES_AFTER = 30  # seconds without its node until another one is made
_GRACE_PERIOD = 10  # seconds
_REQUESTS, _LIMITS = {"cpu": "50m", "memory": "96Mi"}, {"cpu": "1", "memory": "256Mi"}
_WEBHOOK, _URL = "/run/secrets/webhook", "url"  # where the pod has the URL of the spec's webhook
_RBAC = "rbac.authorization.k8s.io"


def check_namespace(spec: ClusterSpec) -> None:
    """Raise UsageError where objects that somebody else applies have an account whose namespace nobody has named: its RoleBinding must."""
    options = spec.kubernetes
    if options.attendant is not None and options.attendant.service_account is None and options.namespace is None:
        raise UsageError(
            "the attendant's RoleBinding has to name the namespace of its account, and kubernetes.namespace is not given",
            "add `--set kubernetes.namespace=NAME`, or write `namespace` in the file; or have an account made, and name it in `attendant.service_account`",
        )


def account(run: Run) -> list[Object]:
    """Return the service account of the attendant, with what it may do, and the policy by which it reaches the API server."""
    wanted = run.options.attendant
    if wanted is None:
        return []
    return [*([] if wanted.service_account else _rights(run)), _policy(run)]


def job(run: Run) -> list[Object]:
    """Return the Job of the attendant: it ends with the run."""
    wanted = run.options.attendant
    if wanted is None:
        return []
    spec: Object = {"completions": 1, "parallelism": 1, "backoffLimit": _REPLACED, **time_to_live(run), "template": _template(run, wanted)}
    head = metadata(run, name_of(run), ATTENDANT, annotations=provenance(run))
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": spec}]


def name_of(run: Run) -> str:
    """Return what all of the attendant's objects are called."""
    return checked(f"{run.name}-{ATTENDANT}")


def _template(run: Run, wanted: Attendant) -> Object:
    limits = run.spec.limits
    given = amounts(wanted.cpu, wanted.memory)
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
        "resources": {"requests": _REQUESTS | given, "limits": _LIMITS | given},
    }
    lost_node = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LEAVES_AFTER}
        for taint in ("not-ready", "unreachable")
    ]
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_PERIOD,
        **pods.hardened(run),
        "automountServiceAccountToken": True,
        "serviceAccountName": wanted.service_account or name_of(run),
        **({"nodeSelector": dict(run.options.node_selector)} if run.options.node_selector else {}),
        "tolerations": [*lost_node, *pods.tolerations(run.options)],
        "containers": [container],
    }
    if webhook is not None:
        container["volumeMounts"] = [{"name": "webhook", "mountPath": _WEBHOOK, "readOnly": True}]
        # Optional: where it is lacking, the attendant does all else.
        source = {"secretName": webhook.secret, "items": [{"key": webhook.key, "path": _URL}], "optional": True}
        spec["volumes"] = [{"name": "webhook", "secret": source}]
    return pods.overridden(run, ATTENDANT, {"metadata": pod_metadata(run, ATTENDANT), "spec": spec})


def _rights(run: Run) -> list[Object]:
    """Return the account and its Role. Jobs are changed by name; pods have names that nobody knows before."""
    name = name_of(run)
    head = metadata(run, name, ATTENDANT)
    # A subject has to say its namespace. Where the run's is the context's, `kubectl apply -k` or the launcher adds it.
    where = {"namespace": run.options.namespace} if run.options.namespace else {}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head, "automountServiceAccountToken": False},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": head, "rules": _rules(run)},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": head,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, **where}],
        },
    ]


def _rules(run: Run) -> list[Object]:
    """Return what the attendant may do; docs/kubernetes-attendant-role.yaml has the same, for who creates it."""
    is_set = run.options.gang == "jobset"
    changed = [] if is_set else [f"{run.name}-{group.role}" for group in groups(run.plan)]
    found = [
        _rule("batch", "jobs", "list", "watch"),
        _rule("batch", "jobs", "get", "patch", names=[*changed, name_of(run)]),
        _rule("", "pods", "get", "list", "watch"),
        _rule("", "pods/log", "get"),
        _rule("", "pods/status", "patch"),
        _rule("", "events", "list"),
        _rule("", "persistentvolumeclaims", "get", "list"),
        _rule("", "configmaps", "get", "patch", names=[f"{run.name}-record"]),
    ]
    return [*found, _rule("jobset.x-k8s.io", "jobsets", "get", "patch", names=[run.name])] if is_set else found


def _rule(group: str, resource: str, *verbs: str, names: list[str] | None = None) -> Object:
    return {"apiGroups": [group], "resources": [resource], **({"resourceNames": names} if names else {}), "verbs": list(verbs)}


def _policy(run: Run) -> Object:
    """Return the policy of the attendant: nobody may reach it, and it may reach the API server even where the namespace denies all.

    Clusters differ in the API server's address and port, and in whether a policy sees these or its Service's. A webhook is anywhere, by its name.
    """
    notify = run.spec.notify
    ports = [{"protocol": "TCP"}, *(network.DNS if notify is not None and notify.webhook is not None else [])]
    spec = {
        "podSelector": {"matchLabels": selector(run, ATTENDANT)},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [{"ports": ports}],
    }
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(run, name_of(run), ATTENDANT), "spec": spec}
