"""Whether a cluster and a namespace of it can run what the launcher makes, and one spec."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher import images
from launcher.backend.check_results import CheckRequest, CheckResult, of_error, ok, problem, warning
from launcher.backend.kubernetes import admission, doctor_capacity, doctor_policies, helper_pod, run_objects, storage_classes
from launcher.backend.kubernetes.client import Cluster, Object, numbers
from launcher.backend.kubernetes.errors import no_access
from launcher.backend.kubernetes.node_capacity import amount
from launcher.errors import LauncherError, UsageError
from launcher.plan import planner
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.render.kubernetes import network
from launcher.render.kubernetes.objects import CLUSTER_LABEL, Run
from launcher.render.kubernetes.storage import sharing
from launcher.spec.kubernetes import DEFAULT_VERSION, parse_version
from launcher.spec.models import ClusterSpec, Role, Roles
from launcher.spec.problems import all_of
from launcher.spec.role_programs import ROLES, access_of, storage_of

# Rights that the verbs together need, as docs/kubernetes-role.yaml has them: API group, resource, verbs.
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
# Rights that the user also needs to make an attendant, as docs/kubernetes-attendant-role.yaml has them. Nobody may give rights that they do not have.
OF_ATTENDANTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
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
_OF_SETS = ("jobset.x-k8s.io", "jobsets", ("get", "patch"))
# Without these a run still trains: what is lost then.
_OPTIONAL = {
    "pods/portforward": "`launcher tensorboard` does not work",
    "jobsets": "no run with kubernetes.gang starts, and a failure counts as final while the JobSet starts the run again",
    "workloads": "`status` does not show why a queue does not admit a run",
    "pods/status": "tasks of a lost node wait until somebody else marks their pods as failed",
    "resourcequotas": "`launcher doctor` does not see quotas",
    "events": "`status` does not show why pods wait",
}
_WATCH = "`kubectl wait`, `kubectl delete` and `kubectl rollout status` do not work, and a launcher that follows a run asks for its Jobs and pods again and again"
# Stands for the spec where none is given: a run that has to reach all that any run has to.
_ANY = ClusterSpec(version=1, name="doctor", strategy="multi_worker_mirrored", roles=Roles(chief=Role(), worker=Role()))
_NO_HOST = 68  # EX_NOHOST of sysexits(3)
_PROBE = f"""
import socket, sys
print("image ok", flush=True)
try:
    socket.getaddrinfo("kubernetes.default.svc", 443)
except OSError as error:
    print(f"{{type(error).__name__}}: {{error}}", file=sys.stderr)
    sys.exit({_NO_HOST})
"""
# Writes where the tasks would, and says whose that is where it may not.
_WRITE = f"""
import os, sys, tempfile
directory = next(one for one in ({CONTAINER_RUNS!r} + "/" + sys.argv[1], {CONTAINER_RUNS!r}) if os.path.isdir(one))
owner = os.stat(directory)
try:
    tempfile.TemporaryFile(dir=directory).close()
except OSError as error:
    raise SystemExit(f"{{error.strerror}}: {{directory}} belongs to user {{owner.st_uid}}, group {{owner.st_gid}}")
"""
_OWNER = re.compile(r"(/\S*) belongs to user (\d+), group (\d+)")


def examine(request: CheckRequest) -> Iterator[CheckResult]:
    """Yield what is found; a cluster that does not answer ends it with the error."""
    cluster = Cluster(request.cluster.context, request.cluster.namespace)
    spec = request.spec or _ANY
    yield ok("cluster", cluster.description())
    yield from _version(cluster, spec)
    if cluster.has_no_access():
        yield of_error("permissions", no_access(cluster.namespace))
        return
    yield from _permissions(cluster)
    yield from _attendant(cluster, spec)
    yield from _namespace(cluster)
    yield from _or_unseen("network policies", "whether one keeps pods from sending is not known", lambda: _policies(cluster, spec))
    yield from _or_unseen("quota", "whether one is used up is not known", lambda: _quotas(cluster))
    yield from _admission(cluster, spec, asked=request.spec is not None)
    if storage_of(spec):
        wanted = f"ask for a storage class that offers {access_of(spec)}"
        yield from _or_unseen("storage", f"whether there is one is not known; {wanted}", lambda: _storage(cluster, _run(spec)))
    yield from doctor_capacity.examine(cluster, request.spec, _tied(cluster, spec))
    yield from _image_and_names(cluster, spec)


def _version(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    offer = cluster.request("get", "/version", doing="asking for the version")
    wanted = spec.kubernetes.version or DEFAULT_VERSION
    offered = numbers(offer)
    if offered < parse_version(wanted):
        remedy = f'set kubernetes.version to "{offered[0]}.{offered[1]}"' if offered >= (1, 26) else "use a cluster of 1.26 or newer"
        yield problem("version", f"{offer['gitVersion']}; the spec is for {wanted} or newer", remedy)
    else:
        yield ok("version", f"{offer['gitVersion']}")


def _permissions(cluster: Cluster) -> Iterator[CheckResult]:
    lacking = _lacking(cluster, RULES)
    for (group, resource), verbs in lacking.items():
        rule = f"have this rule added to a Role: {json.dumps({'apiGroups': [group], 'resources': [resource], 'verbs': verbs})}"
        message = f"you may not {', '.join(verbs)} {resource}"
        lost = _WATCH if verbs == ["watch"] else _OPTIONAL.get(resource)
        yield warning("permissions", f"{message}: {lost}", rule) if lost else problem("permissions", message, rule)
    if not lacking:
        yield ok("permissions", f"all {sum(len(verbs) for _, _, verbs in RULES)} that are needed")


def _attendant(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    """Yield whether an attendant may be made, which is a problem where the spec asks for one that may not."""
    options = spec.kubernetes
    if options.attendant is not None and options.attendant.service_account is not None:
        return  # which there is and what it may do is for those who have made it
    lacking = _lacking(cluster, (*OF_ATTENDANTS, *([_OF_SETS] if options.gang else ())))
    message = "; ".join(f"{', '.join(verbs)} {resource}" for (_, resource), verbs in lacking.items())
    remedy = "have docs/kubernetes-attendant-role.yaml applied and bound to you, or name an account that is there in kubernetes.attendant.service_account"
    if not lacking:
        yield ok("attendant", "you may make one (kubernetes.attendant)")
    elif options.attendant is not None:
        yield problem("attendant", f"you may not make one: {message}", remedy)
    else:
        yield ok("attendant", f"you may make none: {message}")


def _lacking(cluster: Cluster, rules: Sequence[tuple[str, str, tuple[str, ...]]]) -> dict[tuple[str, str], list[str]]:
    """Return the verbs that the user may not, by group and resource."""
    asked = [(group, resource, verb) for group, resource, verbs in rules for verb in verbs]
    with ThreadPoolExecutor(max_workers=8) as pool:
        allowed = list(pool.map(lambda rule: _may(cluster, *rule), asked))
    lacking: dict[tuple[str, str], list[str]] = {}
    for (group, resource, verb), may in zip(asked, allowed, strict=True):
        if not may:
            lacking.setdefault((group, resource), []).append(verb)
    return lacking


def _may(cluster: Cluster, group: str, resource: str, verb: str) -> bool:
    plain, _, sub = resource.partition("/")
    attributes = {"namespace": cluster.namespace, "verb": verb, "group": group, "resource": plain} | ({"subresource": sub} if sub else {})
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = cluster.request("post", path, doing="asking for permissions", body=body)
    return bool(answer.get("status", {}).get("allowed"))


def _namespace(cluster: Cluster) -> Iterator[CheckResult]:
    made: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "doctor-", "namespace": cluster.namespace}}
    try:
        cluster.create(made, dry_run=True)
        yield ok("namespace", f"{cluster.namespace} is there")
    except LauncherError as error:
        yield of_error("namespace", error)


def _listed(cluster: Cluster, path: str, doing: str) -> list[dict[str, Any]]:
    return list(cluster.request("get", path, doing=doing).get("items") or ())


def _or_unseen(what: str, lost: str, check: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check; if it fails, a warning with the cause, with what remains unknown (`lost`), and with the remedy."""
    try:
        yield from check()
    except LauncherError as error:
        yield warning(what, f"{error.message}: {lost}", error.remedy)


def _policies(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    run = _run(spec)
    own = network.policies(run) if run.options.egress == "tasks" else []
    policies = doctor_policies.egress_policies([*_listed(cluster, cluster.path("NetworkPolicy"), "listing network policies"), *own], run)
    names = ", ".join(policies.names)
    if policies.lacking:
        yield problem(
            "network policies",
            f"{names}: a run's tasks may not reach {all_of(policies.lacking)}",
            f"write `kubernetes: {{egress: tasks}}`, which lets them and forbids all else; "
            f"or allow {all_of(policies.lacking)} by a policy of your own, to pods with the label {CLUSTER_LABEL}",
        )
    elif policies.names:
        yield ok("network policies", f"{names}: a run's tasks may send what they have to")
    else:
        yield ok("network policies", "none keeps pods from sending")


def _quotas(cluster: Cluster) -> Iterator[CheckResult]:
    for quota in _listed(cluster, cluster.path("ResourceQuota"), "listing quotas"):
        status = quota.get("status", {})
        full = [name for name, hard in (status.get("hard") or {}).items() if amount(status.get("used", {}).get(name, "0")) >= amount(hard)]
        if full:
            yield warning("quota", f"{quota['metadata']['name']} is used up: {', '.join(full)}", "free some of it, or have it raised")


def _admission(cluster: Cluster, spec: ClusterSpec, *, asked: bool) -> Iterator[CheckResult]:
    """Check the pods of a run as `up` does; of one that nobody has asked about, what is refused is merely good to know."""
    run = _run(spec)
    made = run_objects.objects(run, cluster)
    wanted = admission.pod_sets(made, helper_pod.helper(run))
    for message, remedy in admission.absent(cluster, wanted, made):
        yield problem("references", message, remedy)
    yield from _webhook(cluster, spec)
    try:
        found = [warning("admission", message, remedy) for message, remedy in admission.check(cluster, wanted)]
        yield from found or [ok("admission", "the namespace admits the pods of a run")]
    except LauncherError as error:
        yield of_error("admission", error) if asked else warning("admission", error.message, error.remedy)


def _webhook(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    """Yield whether the webhook of `notify` has its URL, and somebody who may read it: the attendant's pod mounts it."""
    if spec.notify is None or spec.notify.webhook is None:
        return
    lacking = [warning("notify", message, remedy) for message, remedy in admission.missing_webhook_url(cluster, spec)]
    secret, key, may = spec.notify.webhook.secret, spec.notify.webhook.key, _may(cluster, "", "secrets", "get")
    if spec.kubernetes.attendant is None and not may:
        message = "you may not read Secrets, and there is no attendant: nobody tells the webhook"
        lacking.append(warning("notify", message, "write `kubernetes: {attendant: true}`, whose pod mounts the Secret"))
    there = f"the Secret {secret} is there, with its key {key}"
    yield from lacking or [ok("notify", there if may else f"the attendant's pod mounts the Secret {secret}, which you may not read")]


def _storage(cluster: Cluster, made: Run) -> Iterator[CheckResult]:
    run = helper_pod.on_its_claim(cluster, made)
    try:
        sharing(run)
    except UsageError as error:
        yield of_error("storage", error)
        return
    there = cluster.get("PersistentVolumeClaim", run.claim)
    phase = (there or {}).get("status", {}).get("phase", "there")
    if not run.own_claim and there is None:
        yield problem("storage", f"there is no claim {run.claim}", "make it, or leave kubernetes.claim out")
        return
    if there is not None and (not run.own_claim or phase == "Bound"):
        yield ok("storage", f"claim {run.claim} is {phase}, {run.claim_access}")
        return
    classes = storage_classes.listed(cluster)
    name = storage_classes.chosen(run, classes)
    if name is None or name not in classes:
        what = f"there is no storage class {name}" if name else "the cluster has no default storage class"
        yield problem("storage", what, f"set storage.class to one of: {', '.join(classes) or 'none is there'}")
        return
    found, offers = f"{name} ({storage_classes.provisioner(classes[name])})", storage_classes.offers_many_nodes(classes[name])
    wants_many = run.access == "ReadWriteMany"
    if wants_many and offers is False:
        yield problem("storage", f"{found} does not offer ReadWriteMany, and {_who(run)} mount the volume", storage_classes.remedies(run))
    elif wants_many and offers is None:
        message = f"class {found}; whether it offers ReadWriteMany, for {_who(run)}, shows with the first claim"
        yield warning("storage", message, f"if it does not: {storage_classes.remedies(run)}")
    else:
        yield ok("storage", f"class {found}, {run.access}")


def _tied(cluster: Cluster, spec: ClusterSpec) -> tuple[str, ...]:
    """Return the roles whose tasks the volume puts on one node."""
    try:
        shared = sharing(helper_pod.on_its_claim(cluster, _run(spec)))
    except LauncherError:  # said where it is looked for
        return ()
    return tuple(name for name in shared.pods if name in ROLES) if shared.one_node else ()


def _who(run: Run) -> str:
    return sharing(run).description()


def _image_and_names(cluster: Cluster, spec: ClusterSpec) -> Iterator[CheckResult]:
    """Start a pod that ends at once: the image is there, names are found, and the claim can be written to where it has its volume."""
    run = helper_pod.on_its_claim(cluster, _run(spec))
    names = _PROBE if _asks(run) else "print('image ok', flush=True)"
    there = cluster.get("PersistentVolumeClaim", run.claim) if run.claim_access else None
    if there is not None and there.get("status", {}).get("phase") == "Bound":
        try:
            helper_pod.probe(cluster, run, ["python", "-c", f"{names}\n{_WRITE}", run.name], mounted=True)
        except LauncherError as error:
            yield _of_claim(run, error)
        else:
            yield ok("claim", f"user {run.options.user} may write to {run.claim}")
            yield from _starts(run)
            return
    try:
        helper_pod.probe(cluster, run, ["python", "-c", names], mounted=False)
        yield from _starts(run)
    except LauncherError as error:
        without_names = isinstance(error, helper_pod.FailedPodError) and error.code == _NO_HOST
        yield of_error("DNS" if without_names else "image", error)


def _starts(run: Run) -> Iterator[CheckResult]:
    yield ok("image", f"{run.image} starts")
    if _asks(run):
        yield ok("DNS", "pods find kubernetes.default.svc")


def _asks(run: Run) -> bool:
    """Return whether a pod of doctor's may find names: not where the run's own policy is to allow it, which is not there yet."""
    return run.options.egress == "any"


def _of_claim(run: Run, error: LauncherError) -> CheckResult:
    owned = _OWNER.search(error.message)
    if owned is None:  # whether it is the claim's fault shows without it
        return warning("claim", f"whether it can be written to is not known: {error.message}", error.remedy)
    directory, user, group = owned.groups()
    message = f"{directory} of {run.claim} belongs to user {user}, group {group}; user {run.options.user} may not write there"
    return problem("claim", message, f"set kubernetes.user to {user}, or give the directory to {run.options.user}")


def _run(spec: ClusterSpec) -> Run:
    return Run(spec, planner.plan(spec, "kubernetes", run_dir=f"/runs/{spec.name}"), images.image_for(spec))
