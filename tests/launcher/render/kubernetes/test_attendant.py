"""The attendant's objects: one more Job, an account that may do little, and a policy by which it reaches the API server."""

from collections.abc import Callable
from typing import Any

import pytest

from launcher.errors import UsageError
from launcher.images import DEFAULT_IMAGE
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run
from tests.launcher.render.kubernetes.conftest import CLUSTER, Objects, Rendered

NAME = "digits-attendant"
ATTENDED = CLUSTER + "kubernetes: {attendant: true, namespace: team}\n"


def only(objects: Objects) -> dict[str, Any]:
    """Return the container of the attendant."""
    (made,) = objects["Job", NAME]["spec"]["template"]["spec"]["containers"]
    assert isinstance(made, dict)
    return made


def test_without_it_a_run_has_none_of_its_objects(rendered: Rendered) -> None:
    plain = rendered(CLUSTER + "kubernetes: {namespace: team}\n")
    assert not {kind for kind, name in plain if name == NAME}
    assert plain.keys() == rendered(CLUSTER + "kubernetes: {namespace: team, attendant: false}\n").keys()
    more = rendered(ATTENDED).keys() - plain.keys()
    assert sorted(kind for kind, _ in more) == ["Job", "NetworkPolicy", "Role", "RoleBinding", "ServiceAccount"]
    assert {name for _, name in more} == {NAME}


def test_its_job_is_replaced_at_once_where_its_node_is_lost_and_waits_for_no_pod_that_nobody_ends(rendered: Rendered) -> None:
    job = rendered(ATTENDED)["Job", NAME]
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "attendant"
    assert {"podFailurePolicy", "podReplacementPolicy", "activeDeadlineSeconds"}.isdisjoint(job["spec"])
    assert job["spec"]["backoffLimit"] >= 100
    spec = job["spec"]["template"]["spec"]
    moved = {one["key"]: one["tolerationSeconds"] for one in spec["tolerations"] if one["effect"] == "NoExecute"}
    assert moved.keys() == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert max(moved.values()) < 60
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not {"tf-launcher/cluster", "tf-launcher/volume"} & labels.keys()  # it is none of the tasks, and mounts nothing
    assert not spec.get("volumes")


def test_it_is_admitted_by_pod_security_restricted_whatever_the_tasks_are(rendered: Rendered) -> None:
    for more in ("", "security: image\n"):
        spec = rendered(ATTENDED + more)["Job", NAME]["spec"]["template"]["spec"]
        security = spec["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_it_is_told_what_a_launcher_reads_in_the_runs_record(rendered: Rendered) -> None:
    objects = rendered(ATTENDED + "limits: {node_lost: 2m, start_timeout: 20m}\n")
    assert only(objects)["command"][1:] == [
        *("-I", "-m", "launcher.backend.kubernetes.attendant", "digits"),
        *("--node-lost", "120", "--start-timeout", "1200"),
    ]


def test_its_role_changes_the_runs_own_jobs_alone_and_deletes_nothing(rendered: Rendered) -> None:
    objects = rendered(ATTENDED)
    rules = objects["Role", NAME]["rules"]
    verbs = {verb for rule in rules for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "patch"}
    changed = {rule["resources"][0]: rule.get("resourceNames") for rule in rules if "patch" in rule["verbs"]}
    assert changed == {
        "jobs": ["digits-chief", "digits-worker", "digits-ps", "digits-evaluator", NAME],
        "pods/status": None,
        "configmaps": ["digits-record"],
    }
    assert {name for kind, name in objects if kind == "Job"} == set(changed["jobs"] or ())
    assert objects["RoleBinding", NAME]["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": "team"}]
    assert objects["RoleBinding", NAME]["roleRef"]["name"] == NAME
    spec = objects["Job", NAME]["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (NAME, True)


def test_the_tasks_do_not_get_its_token(rendered: Rendered) -> None:
    objects = rendered(ATTENDED)
    assert objects["ServiceAccount", NAME]["automountServiceAccountToken"] is False
    tasks = [one["spec"]["template"]["spec"] for (kind, name), one in objects.items() if kind == "Job" and name != NAME]
    assert len(tasks) == 4
    assert [("serviceAccountName" in spec, spec["automountServiceAccountToken"]) for spec in tasks] == [(False, False)] * 4


def test_a_jobset_is_what_it_changes_where_there_is_one(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "kubernetes: {attendant: true, namespace: team, gang: jobset}\n")
    changed = {rule["resources"][0]: rule.get("resourceNames") for rule in objects["Role", NAME]["rules"] if "patch" in rule["verbs"]}
    assert (changed["jobs"], changed["jobsets"]) == ([NAME], ["digits"])


def test_an_account_of_the_users_takes_the_place_of_ours(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "kubernetes: {attendant: {service_account: robot}}\n")  # nor need it be known where
    assert {kind for kind, name in objects if name == NAME} == {"Job", "NetworkPolicy"}
    assert objects["Job", NAME]["spec"]["template"]["spec"]["serviceAccountName"] == "robot"


def test_what_somebody_else_applies_says_the_namespace_of_its_account(
    rendered: Rendered, made: Callable[[str], Run], text: Callable[..., str]
) -> None:
    spec = CLUSTER + "kubernetes: {attendant: true}\n"
    for to in ("kubernetes", "jobset"):
        with pytest.raises(UsageError, match="has to name the namespace") as refused:
            text(spec, to)
        assert "--set kubernetes.namespace=NAME" in refused.value.remedy
    (binding,) = [one for one in manifests.objects(made(spec)) if one["kind"] == "RoleBinding"]  # a launcher knows where it is
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME}]
    assert "namespace" in rendered(ATTENDED)["RoleBinding", NAME]["subjects"][0]


def test_it_reaches_the_api_server_and_nobody_reaches_it(rendered: Rendered) -> None:
    objects = rendered(ATTENDED)
    policy = objects["NetworkPolicy", NAME]["spec"]
    labels = objects["Job", NAME]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert policy["egress"] == [{"ports": [{"protocol": "TCP"}]}]


def test_its_image_is_the_tasks_own_or_the_one_that_is_named(rendered: Rendered, text: Callable[..., str]) -> None:
    assert only(rendered(ATTENDED))["image"] == DEFAULT_IMAGE
    pushed = "image: registry.example/team/trainer:1\n"
    assert only(rendered(ATTENDED + pushed))["image"] == "registry.example/team/trainer:1"
    named = CLUSTER.partition("train:")[0] + "image: registry.example/own:1\ncommand: [python, train.py]\n"
    named += "kubernetes: {attendant: {image: registry.example/team/trainer:1}, namespace: team}\n"
    assert only(rendered(named))["image"] == "registry.example/team/trainer:1"
    assert "images registry.example/own:1, registry.example/team/trainer:1" in text(named)


def test_its_resources_and_pod_are_its_own(rendered: Rendered) -> None:
    assert only(rendered(ATTENDED))["resources"] == {
        "requests": {"cpu": "50m", "memory": "96Mi"},
        "limits": {"cpu": "1", "memory": "256Mi"},
    }
    overrides = "overrides: {all: {metadata: {labels: {a: b}}}, attendant: {metadata: {labels: {c: d}}}}"
    objects = rendered(
        f"{CLUSTER}kubernetes: {{attendant: {{cpu: 200m, memory: 128Mi}}, ttl: 1h, node_selector: {{disk: ssd}}, namespace: team, {overrides}}}\n"
    )
    assert only(objects)["resources"] == {"requests": {"cpu": "200m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}}
    job = objects["Job", NAME]["spec"]
    assert (job["ttlSecondsAfterFinished"], job["template"]["spec"]["nodeSelector"]) == (3600, {"disk": "ssd"})
    labels = job["template"]["metadata"]["labels"]
    assert (labels.get("a"), labels.get("c")) == (None, "d")


def test_nobody_is_told_to_end_what_it_ends(text: Callable[..., str]) -> None:
    own = (
        "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\nsupervise: false\ncommand: [python, train.py]\nimage: own:1\n"
    )
    assert "do not end with the run by themselves" in text(own)
    attended = own + "kubernetes: {attendant: {image: trainer:1}, namespace: team}\n"
    assert "do not end with the run by themselves" not in text(attended)


def test_it_tells_a_webhook_whose_url_is_mounted_and_starts_without_that_too(rendered: Rendered, text: Callable[..., str]) -> None:
    told = ATTENDED + "notify: {webhook: {secret: hook, key: address, allow_http: true}}\n"
    objects = rendered(told)
    container = only(objects)
    assert container["command"][-3:] == ["--webhook", "/run/secrets/webhook/url", "--allow-http"]
    assert container["volumeMounts"] == [{"name": "webhook", "mountPath": "/run/secrets/webhook", "readOnly": True}]
    secret = {"secretName": "hook", "items": [{"key": "address", "path": "url"}], "optional": True}
    assert objects["Job", NAME]["spec"]["template"]["spec"]["volumes"] == [{"name": "webhook", "secret": secret}]
    ports = objects["NetworkPolicy", NAME]["spec"]["egress"][0]["ports"]
    assert ports[0] == {"protocol": "TCP"}
    assert {"protocol": "UDP", "port": 53} in ports
    assert "webhook" not in text(ATTENDED)
    assert "gets no messages" not in text(told)
    alone = CLUSTER + "notify: {webhook: {secret: hook}, command: [mail]}\n"
    for words in ("the webhook of `notify` gets no messages", "the program of `notify` is not run"):
        assert words in text(alone)
