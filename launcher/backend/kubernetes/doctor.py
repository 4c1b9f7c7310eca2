"""Checks of `launcher doctor`: whether a cluster and a namespace can run the launcher's objects, and a given spec."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from launcher.backend.check_results import CheckRequest, CheckResult, error_result, ok, problem, warning
from launcher.backend.kubernetes import admission, diagnosis, doctor_capacity, doctor_policies, helper_pod, run_objects, storage_classes
from launcher.backend.kubernetes.client import Cluster, Object, version_numbers
from launcher.backend.kubernetes.errors import no_access
from launcher.errors import LauncherError, UsageError
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes import network
from launcher.render.kubernetes.objects import TASK_LABEL, Run
from launcher.render.kubernetes.storage import volume_pods
from launcher.spec.kubernetes import DEFAULT_VERSION, OLDEST_VERSION, parse_version
from launcher.spec.models import ClusterSpec, Role, Roles
from launcher.spec.problems import all_of
from launcher.spec.quantities import parse_quantity
from launcher.spec.role_programs import ROLES, access_of, storage_of

# Rights that all verbs of the launcher need together, as in docs/kubernetes-role.yaml: API group, resource, verbs.
RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "configmaps", ("get", "list", "watch", "create", "update", "patch", "delete")),
    ("", "persistentvolumeclaims", ("get", "list", "watch", "create", "patch", "delete")),
    ("", "services", ("get", "list", "watch", "create", "patch", "delete")),
    ("apps", "deployments", ("get", "list", "watch", "create", "patch", "delete")),
    ("networking.k8s.io", "networkpolicies", ("get", "list", "watch", "create", "patch", "delete")),
    ("batch", "jobs", ("get", "list", "watch", "create", "patch", "delete")),
    ("", "pods", ("get", "list", "watch", "create", "delete")),
    ("", "pods/log", ("get",)),
    ("", "events", ("list",)),
    ("", "resourcequotas", ("list",)),
    ("", "pods/portforward", ("get", "create")),
    ("jobset.x-k8s.io", "jobsets", ("get", "list", "watch", "create", "delete")),
    ("kueue.x-k8s.io", "workloads", ("list",)),
    ("", "pods/status", ("patch",)),
)
# Rights that the user also needs to create an attendant, as in docs/kubernetes-attendant-role.yaml. RBAC only lets users grant rights that they have.
ATTENDANT_RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "serviceaccounts", ("get", "list", "create", "patch", "delete")),
    ("rbac.authorization.k8s.io", "roles", ("get", "list", "create", "patch", "delete")),
    ("rbac.authorization.k8s.io", "rolebindings", ("get", "list", "create", "patch", "delete")),
    ("batch", "jobs", ("get", "list", "watch", "patch")),
    ("", "pods", ("get", "list", "watch")),
    ("", "pods/log", ("get",)),
    ("", "pods/status", ("patch",)),
    ("", "events", ("list",)),
    ("", "persistentvolumeclaims", ("get", "list")),
    ("", "configmaps", ("get", "patch")),
)
_JOBSET_RULE = ("jobset.x-k8s.io", "jobsets", ("get", "patch"))
# Rights without which a run still trains -> what does not work then.
_OPTIONAL = {
    "pods/portforward": "`launcher tensorboard` does not work",
    "jobsets": "no run with kubernetes.gang starts, and a failure counts as final while the JobSet starts the run again",
    "workloads": "`status` does not show why a queue does not admit a run",
    "pods/status": "tasks of a lost node wait until another user marks their pods as failed",
    "resourcequotas": "`launcher doctor` does not see quotas",
    "events": "`status` does not show why pods wait",
}
_WITHOUT_WATCH = (
    "`kubectl wait`, `kubectl delete` and `kubectl rollout status` do not work, and a launcher that follows a run polls its Jobs and pods"
)
# The spec if none is given: its tasks need every port that any run needs.
_DEFAULT_SPEC = ClusterSpec(version=1, name="doctor", strategy="multi_worker_mirrored", roles=Roles(chief=Role(), worker=Role()))
_NO_HOST = 68  # EX_NOHOST of sysexits(3)
_LOOKUP_SCRIPT = f"""
import socket, sys
print("image ok", flush=True)
try:
    socket.getaddrinfo("kubernetes.default.svc", 443)
except OSError as error:
    print(f"{{type(error).__name__}}: {{error}}", file=sys.stderr)
    sys.exit({_NO_HOST})
"""
# Quotas of Services of types that no run has: load balancers and node ports, which are often forbidden by a quota of 0.
_UNUSED_QUOTAS = "services."
# Writes where the tasks would; if that fails, reports the cause and the owner of the directory.
_WRITE_SCRIPT = f"""
import errno, os, sys, tempfile
directory = next(one for one in ({CONTAINER_RUNS!r} + "/" + sys.argv[1], {CONTAINER_RUNS!r}) if os.path.isdir(one))
owner = os.stat(directory)
try:
    tempfile.TemporaryFile(dir=directory).close()
except OSError as error:
    cause = f"{{errno.errorcode.get(error.errno, 'error')}} ({{error.strerror}})"
    raise SystemExit(f"{{cause}}: {{directory}} belongs to user {{owner.st_uid}}, group {{owner.st_gid}}")
"""
_NOT_WRITTEN = re.compile(r"(\w+) \(([^)]*)\): (/\S*) belongs to user (\d+), group (\d+)")
# Cause of a failed write other than a missing permission -> remedy.
_WRITE_REMEDIES = {
    "EROFS": "see whether its PersistentVolume or its server is read-only, or use another claim",
    "ENOSPC": "free some space there, or have the claim enlarged",
    "EDQUOT": "free some space there, or have the quota of the volume's server raised",
}


def examine(request: CheckRequest) -> Iterator[CheckResult]:
    """Yield the results of all checks. Raises LauncherError if the cluster does not answer."""
    cluster = Cluster(request.cluster.context, request.cluster.namespace)
    spec = request.spec or _DEFAULT_SPEC
    yield ok("cluster", cluster.description())
    yield from _version(cluster, spec)
    if cluster.lacks_access():
        yield error_result("permissions", no_access(cluster.namespace))
        return
    yield from _permissions(cluster)
    yield from _attendant(cluster, spec)
    yield from _namespace(cluster)
    yield from _or_unknown("network policies", "whether one restricts egress is not known", lambda: _policies(cluster, spec))
    yield from _or_unknown("quota", "whether one is used up is not known", lambda: _quotas(cluster))
    yield from _admission(cluster, spec, is_given=request.spec is not None)
    if storage_of(spec):
        wanted = f"ask for a storage class that offers {access_of(spec)}"
        yield from _or_unknown(
            "storage", f"whether there is one is not known; {wanted}", lambda: _storage(cluster, run_objects.run_of_spec(spec))
        )
    yield from doctor_capacity.examine(cluster, request.spec, _colocated_roles(cluster, spec))
    yield from _probe(cluster, spec)


def _version(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    reported = cluster.request("get", "/version", action="asking for the version")
    wanted = spec.kubernetes.version or DEFAULT_VERSION
    offered = version_numbers(reported)
    if offered < parse_version(wanted):
        remedy = (
            f'set kubernetes.version to "{offered[0]}.{offered[1]}"'
            if offered >= OLDEST_VERSION
            else f"use a cluster of {'.'.join(map(str, OLDEST_VERSION))} or newer"
        )
        yield problem("version", f"{reported['gitVersion']}; the spec is for {wanted} or newer", remedy)
    else:
        yield ok("version", f"{reported['gitVersion']}")


def _permissions(cluster: Cluster) -> Iterator[CheckResult]:
    lacking = _lacking(cluster, RULES)
    for (group, resource), verbs in lacking.items():
        rule = f"have this rule added to a Role: {json.dumps({'apiGroups': [group], 'resources': [resource], 'verbs': verbs})}"
        message = f"you may not {', '.join(verbs)} {resource}"
        consequence = _WITHOUT_WATCH if verbs == ["watch"] else _OPTIONAL.get(resource)
        yield warning("permissions", f"{message}: {consequence}", rule) if consequence else problem("permissions", message, rule)
    if not lacking:
        yield ok("permissions", f"all {sum(len(verbs) for _, _, verbs in RULES)} that are needed")


def _attendant(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    """Yield whether the user may create an attendant; if not, that is a problem only if the spec asks for one."""
    options = spec.kubernetes
    if options.attendant is not None and options.attendant.service_account is not None:
        return  # its creator is responsible for its rights
    lacking = _lacking(cluster, (*ATTENDANT_RULES, *([_JOBSET_RULE] if options.gang else ())))
    message = "; ".join(f"{', '.join(verbs)} {resource}" for (_, resource), verbs in lacking.items())
    remedy = "have docs/kubernetes-attendant-role.yaml applied and bound to you, or name an existing account in kubernetes.attendant.service_account"
    if not lacking:
        yield ok("attendant", "you may create one (kubernetes.attendant)")
    elif options.attendant is not None:
        yield problem("attendant", f"you may not create one: {message}", remedy)
    else:
        yield ok("attendant", f"you may not create one: {message}")


def _lacking(cluster: Cluster, rules: Sequence[tuple[str, str, tuple[str, ...]]]) -> dict[tuple[str, str], list[str]]:
    """Return the verbs that the user lacks, by group and resource."""
    rights = [(group, resource, verb) for group, resource, verbs in rules for verb in verbs]
    with ThreadPoolExecutor(max_workers=8) as pool:
        allowed = list(pool.map(lambda rule: _is_allowed(cluster, *rule), rights))
    lacking: dict[tuple[str, str], list[str]] = {}
    for (group, resource, verb), is_allowed in zip(rights, allowed, strict=True):
        if not is_allowed:
            lacking.setdefault((group, resource), []).append(verb)
    return lacking


def _is_allowed(cluster: Cluster, group: str, resource: str, verb: str) -> bool:
    plain, _, sub = resource.partition("/")
    attributes = {"namespace": cluster.namespace, "verb": verb, "group": group, "resource": plain} | ({"subresource": sub} if sub else {})
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = cluster.request("post", path, action="asking for permissions", body=body)
    return bool(answer.get("status", {}).get("allowed"))


def _namespace(cluster: Cluster) -> Iterator[CheckResult]:
    manifest: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "doctor-", "namespace": cluster.namespace}}
    try:
        cluster.create(manifest, dry_run=True)
        yield ok("namespace", f"{cluster.namespace} exists")
    except LauncherError as error:
        yield error_result("namespace", error)


def _or_unknown(check_name: str, unknown: str, check: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check; if it fails, a warning with the cause, with what is `unknown` then, and with the remedy."""
    try:
        yield from check()
    except LauncherError as error:
        yield warning(check_name, f"{error.message}: {unknown}", error.remedy)


def _policies(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    run = run_objects.run_of_spec(spec)
    own = network.policies(run) if run.options.egress == "tasks" else []
    policies = doctor_policies.egress_policies([*cluster.list_objects("NetworkPolicy"), *own], run)
    names = ", ".join(policies.names)
    if policies.lacking:
        yield problem(
            "network policies",
            f"{names}: a run's tasks may not reach {all_of(policies.lacking)}",
            f"write `kubernetes: {{egress: tasks}}`, which allows only that; "
            f"or allow {all_of(policies.lacking)} by a policy of your own, to pods with the label {TASK_LABEL}",
        )
    elif policies.names:
        yield ok("network policies", f"{names}: a run's tasks may send what they need")
    else:
        yield ok("network policies", "none restricts egress")


def _quotas(cluster: Cluster) -> Iterator[CheckResult]:
    for quota in cluster.list_objects("ResourceQuota"):
        status = quota.get("status", {})
        full = [
            name
            for name, hard in (status.get("hard") or {}).items()
            if not name.startswith(_UNUSED_QUOTAS) and parse_quantity(status.get("used", {}).get(name, "0")) >= parse_quantity(hard)
        ]
        if full:
            yield warning("quota", f"{quota['metadata']['name']} is used up: {', '.join(full)}", "free some of it, or have it raised")


def _admission(cluster: Cluster, spec: ClusterSpec, *, is_given: bool) -> Iterator[CheckResult]:
    """Check the pods of a run as `up` does; if no spec was given, a refusal is only a warning."""
    run = run_objects.run_of_spec(spec)
    manifests = run_objects.objects(run, cluster)
    sets = admission.pod_sets(manifests, helper_pod.helper(run))
    for message, remedy in admission.missing_references(cluster, sets, manifests):
        yield problem("references", message, remedy)
    yield from _webhook(cluster, spec)
    try:
        warnings = [warning("admission", message, remedy) for message, remedy in admission.check(cluster, sets)]
        yield from warnings or [ok("admission", "the namespace admits the pods of a run")]
    except LauncherError as error:
        yield error_result("admission", error) if is_given else warning("admission", error.message, error.remedy)


def _webhook(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    """Yield whether the webhook of `notify` has its URL, and whether the user or the attendant can read it."""
    if spec.notify is None or spec.notify.webhook is None:
        return
    warnings = [warning("notify", message, remedy) for message, remedy in admission.missing_webhook_url(cluster, spec)]
    secret, key, may_read = spec.notify.webhook.secret, spec.notify.webhook.key, _is_allowed(cluster, "", "secrets", "get")
    if spec.kubernetes.attendant is None and not may_read:
        message = "you may not read Secrets, and there is no attendant: the webhook gets no messages"
        warnings.append(warning("notify", message, "write `kubernetes: {attendant: true}`, whose pod mounts the Secret"))
    exists = f"the Secret {secret} exists, with its key {key}"
    yield from warnings or [ok("notify", exists if may_read else f"the attendant's pod mounts the Secret {secret}, which you may not read")]


def _storage(cluster: Cluster, planned: Run) -> Iterator[CheckResult]:
    run = run_objects.with_claim_access(cluster, planned)
    try:
        volume_pods(run)
    except UsageError as error:
        yield error_result("storage", error)
        return
    claim = cluster.get("PersistentVolumeClaim", run.claim)
    phase = (claim or {}).get("status", {}).get("phase", "there")
    if not run.has_own_claim and claim is None:
        yield problem("storage", f"there is no claim {run.claim}", "create it, or leave kubernetes.claim out")
        return
    if claim is not None and (not run.has_own_claim or phase == "Bound"):
        yield ok("storage", f"claim {run.claim} is {phase}, {run.claim_access}")
        return
    classes = storage_classes.by_name(cluster)
    name = storage_classes.chosen(run, classes)
    if name is None or name not in classes:
        message = f"there is no storage class {name}" if name else "the cluster has no default storage class"
        yield problem("storage", message, f"set storage.class to one of: {', '.join(classes) or 'the cluster has none'}")
        return
    class_name, offers_many = f"{name} ({storage_classes.provisioner(classes[name])})", storage_classes.offers_many_nodes(classes[name])
    wants_many = run.access == "ReadWriteMany"
    if wants_many and offers_many is False:
        yield problem(
            "storage", f"{class_name} does not offer ReadWriteMany, and {_mounters(run)} mount the volume", storage_classes.remedies(run)
        )
    elif wants_many and offers_many is None:
        message = f"class {class_name}; whether it offers ReadWriteMany, for {_mounters(run)}, shows with the first claim"
        yield warning("storage", message, f"if it does not: {storage_classes.remedies(run)}")
    else:
        yield ok("storage", f"class {class_name}, {run.access}")


def _colocated_roles(cluster: Cluster, spec: ClusterSpec) -> tuple[str, ...]:
    """Return the roles whose tasks must share one node because of the volume."""
    try:
        shared = volume_pods(run_objects.with_claim_access(cluster, run_objects.run_of_spec(spec)))
    except LauncherError:  # reported by the check of storage
        return ()
    return tuple(name for name in shared.pods if name in ROLES) if shared.one_node else ()


def _mounters(run: Run) -> str:
    return volume_pods(run).description()


def _probe(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    """Start a pod that ends at once, to check that the image can be pulled, that DNS works and that a bound claim can be written to."""
    run = run_objects.with_claim_access(cluster, run_objects.run_of_spec(spec))
    script = _LOOKUP_SCRIPT if _looks_up_names(run) else "print('image ok', flush=True)"
    claim = cluster.get("PersistentVolumeClaim", run.claim) if run.claim_access else None
    if claim is not None and claim.get("status", {}).get("phase") == "Bound":
        try:
            helper_pod.probe(cluster, run, ["python3", "-c", f"{script}\n{_WRITE_SCRIPT}", run.name], mounted=True)
        except LauncherError as error:
            yield _claim_problem(run, error)
        else:
            yield ok("claim", f"user {run.options.user} may write to {run.claim}")
            yield from _probe_results(run)
            return
    try:
        helper_pod.probe(cluster, run, ["python3", "-c", script], mounted=False)
        yield from _probe_results(run)
    except LauncherError as error:
        failed = error if isinstance(error, helper_pod.FailedPodError) else None
        if failed and failed.kind == diagnosis.NO_PYTHON and not spec.supervise:
            message = f"{run.image} has no python3: DNS and the volume are not checked"
            yield warning("image", message, "add python3 to it if you need these checks, or `launcher get`")
        else:
            yield error_result("DNS" if failed and failed.code == _NO_HOST else "image", error)


def _probe_results(run: Run) -> Iterator[CheckResult]:
    yield ok("image", f"{run.image} starts")
    if _looks_up_names(run):
        yield ok("DNS", "pods find kubernetes.default.svc")


def _looks_up_names(run: Run) -> bool:
    """Return whether the probe looks up a name: not if egress needs the run's own policy, which does not exist yet."""
    return run.options.egress == "any"


def _claim_problem(run: Run, error: LauncherError) -> CheckResult:
    match = _NOT_WRITTEN.search(error.message)
    if match is None:  # the probe without the claim shows whether the claim is the cause
        return warning("claim", f"whether it can be written to is not known: {error.message}", error.remedy)
    cause, text, directory, user, group = match.groups()
    if cause not in {"EACCES", "EPERM"}:
        remedy = _WRITE_REMEDIES.get(cause, f"see kubectl describe pvc {run.claim}")
        return problem("claim", f"{directory} of {run.claim} cannot be written: {text}", remedy)
    message = f"{directory} of {run.claim} belongs to user {user}, group {group}; user {run.options.user} may not write there"
    return problem("claim", message, f"set kubernetes.user to {user}, or give the directory to {run.options.user}")
