"""The attendant's objects: one more Job, an account with few rights, and a network policy for the API server."""

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


def attendant_container(objects: Objects) -> dict[str, Any]:
    """Return the container of the attendant."""
    (container,) = objects["Job", NAME]["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_without_it_a_run_has_none_of_its_objects(rendered: Rendered) -> None:
    plain = rendered(CLUSTER + "kubernetes: {namespace: team}\n")
    assert not {kind for kind, name in plain if name == NAME}
    assert plain.keys() == rendered(CLUSTER + "kubernetes: {namespace: team, attendant: false}\n").keys()
    added = rendered(ATTENDED).keys() - plain.keys()
    assert sorted(kind for kind, _ in added) == ["Job", "NetworkPolicy", "Role", "RoleBinding", "ServiceAccount"]
    assert {name for _, name in added} == {NAME}


def test_its_pod_is_replaced_soon_after_its_node_is_lost_and_waits_for_no_other_pod(rendered: Rendered) -> None:
    job = rendered(ATTENDED)["Job", NAME]
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "attendant"
    assert {"podFailurePolicy", "podReplacementPolicy", "activeDeadlineSeconds"}.isdisjoint(job["spec"])
    assert job["spec"]["backoffLimit"] >= 100
    spec = job["spec"]["template"]["spec"]
    seconds = {one["key"]: one["tolerationSeconds"] for one in spec["tolerations"] if one["effect"] == "NoExecute"}
    assert seconds.keys() == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert max(seconds.values()) < 60
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not {"tf-launcher/cluster", "tf-launcher/volume"} & labels.keys()  # it is no task, and mounts nothing
    assert not spec.get("volumes")


def test_it_is_admitted_by_pod_security_restricted_whatever_the_tasks_are(rendered: Rendered) -> None:
    for security in ("", "security: image\n"):
        spec = rendered(ATTENDED + security)["Job", NAME]["spec"]["template"]["spec"]
        context = spec["securityContext"]
        assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_its_arguments_are_the_limits_that_a_launcher_reads_in_the_runs_record(rendered: Rendered) -> None:
    objects = rendered(ATTENDED + "limits: {node_lost: 2m, start_timeout: 20m}\n")
    assert attendant_container(objects)["command"][1:] == [
        *("-I", "-m", "launcher.backend.kubernetes.attendant", "digits"),
        *("--node-lost", "120", "--start-timeout", "1200"),
    ]


def test_its_role_may_change_only_the_runs_own_jobs_and_delete_nothing(rendered: Rendered) -> None:
    objects = rendered(ATTENDED)
    rules = objects["Role", NAME]["rules"]
    verbs = {verb for rule in rules for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "patch"}
    patched = {rule["resources"][0]: rule.get("resourceNames") for rule in rules if "patch" in rule["verbs"]}
    assert patched == {
        "jobs": ["digits-chief", "digits-worker", "digits-ps", "digits-evaluator", NAME],
        "pods/status": None,
        "configmaps": ["digits-record"],
    }
    assert {name for kind, name in objects if kind == "Job"} == set(patched["jobs"] or ())
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


def test_its_role_may_change_the_jobset_of_a_run(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "kubernetes: {attendant: true, namespace: team, gang: jobset}\n")
    patched = {rule["resources"][0]: rule.get("resourceNames") for rule in objects["Role", NAME]["rules"] if "patch" in rule["verbs"]}
    assert (patched["jobs"], patched["jobsets"]) == ([NAME], ["digits"])


def test_an_account_of_the_user_replaces_ours(rendered: Rendered) -> None:
    objects = rendered(CLUSTER + "kubernetes: {attendant: {service_account: robot}}\n")  # needs no namespace
    assert {kind for kind, name in objects if name == NAME} == {"Job", "NetworkPolicy"}
    assert objects["Job", NAME]["spec"]["template"]["spec"]["serviceAccountName"] == "robot"


def test_manifests_for_others_to_apply_need_the_namespace_of_the_account(
    rendered: Rendered, run_for: Callable[[str], Run], text: Callable[..., str]
) -> None:
    spec = CLUSTER + "kubernetes: {attendant: true}\n"
    for to in ("kubernetes", "jobset"):
        with pytest.raises(UsageError, match="has to name the namespace") as refused:
            text(spec, to)
        assert "--set kubernetes.namespace=NAME" in refused.value.remedy
    (binding,) = [one for one in manifests.objects(run_for(spec)) if one["kind"] == "RoleBinding"]  # a launcher knows its namespace
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME}]
    assert "namespace" in rendered(ATTENDED)["RoleBinding", NAME]["subjects"][0]


def test_it_reaches_the_api_server_and_nothing_reaches_it(rendered: Rendered) -> None:
    objects = rendered(ATTENDED)
    policy = objects["NetworkPolicy", NAME]["spec"]
    labels = objects["Job", NAME]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert policy["egress"] == [{"ports": [{"protocol": "TCP"}]}]


def test_its_image_is_the_image_of_the_tasks_or_the_one_in_the_spec(rendered: Rendered, text: Callable[..., str]) -> None:
    assert attendant_container(rendered(ATTENDED))["image"] == DEFAULT_IMAGE
    pushed = "image: registry.example/team/trainer:1\n"
    assert attendant_container(rendered(ATTENDED + pushed))["image"] == "registry.example/team/trainer:1"
    named = CLUSTER.partition("train:")[0] + "image: registry.example/own:1\ncommand: [python, train.py]\n"
    named += "kubernetes: {attendant: {image: registry.example/team/trainer:1}, namespace: team}\n"
    assert attendant_container(rendered(named))["image"] == "registry.example/team/trainer:1"
    assert "images registry.example/own:1, registry.example/team/trainer:1" in text(named)


def test_its_resources_and_pod_are_its_own(rendered: Rendered) -> None:
    assert attendant_container(rendered(ATTENDED))["resources"] == {
        "requests": {"cpu": "50m", "memory": "96Mi"},
        "limits": {"cpu": "1", "memory": "256Mi"},
    }
    overrides = "overrides: {all: {metadata: {labels: {a: b}}}, attendant: {metadata: {labels: {c: d}}}}"
    objects = rendered(
        f"{CLUSTER}kubernetes: {{attendant: {{cpu: 200m, memory: 128Mi}}, ttl: 1h, node_selector: {{disk: ssd}}, namespace: team, {overrides}}}\n"
    )
    assert attendant_container(objects)["resources"] == {
        "requests": {"cpu": "200m", "memory": "128Mi"},
        "limits": {"cpu": "200m", "memory": "128Mi"},
    }
    job = objects["Job", NAME]["spec"]
    assert (job["ttlSecondsAfterFinished"], job["template"]["spec"]["nodeSelector"]) == (3600, {"disk": "ssd"})
    labels = job["template"]["metadata"]["labels"]
    assert (labels.get("a"), labels.get("c")) == (None, "d")


def test_a_note_asks_the_user_to_end_tasks_only_if_it_does_not(text: Callable[..., str]) -> None:
    own = (
        "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}}\nsupervise: false\ncommand: [python, train.py]\nimage: own:1\n"
    )
    assert "do not end with the run by themselves" in text(own)
    attended = own + "kubernetes: {attendant: {image: trainer:1}, namespace: team}\n"
    assert "do not end with the run by themselves" not in text(attended)


def test_it_notifies_a_webhook_whose_url_is_in_an_optional_secret(rendered: Rendered, text: Callable[..., str]) -> None:
    notifying = ATTENDED + "notify: {webhook: {secret: hook, key: address, allow_http: true}}\n"
    objects = rendered(notifying)
    container = attendant_container(objects)
    assert container["command"][-3:] == ["--webhook", "/run/secrets/webhook/url", "--allow-http"]
    assert container["volumeMounts"] == [{"name": "webhook", "mountPath": "/run/secrets/webhook", "readOnly": True}]
    secret = {"secretName": "hook", "items": [{"key": "address", "path": "url"}], "optional": True}
    assert objects["Job", NAME]["spec"]["template"]["spec"]["volumes"] == [{"name": "webhook", "secret": secret}]
    ports = objects["NetworkPolicy", NAME]["spec"]["egress"][0]["ports"]
    assert ports[0] == {"protocol": "TCP"}
    assert {"protocol": "UDP", "port": 53} in ports
    assert "webhook" not in text(ATTENDED)
    assert "gets no messages" not in text(notifying)
    unattended = CLUSTER + "notify: {webhook: {secret: hook}, command: [mail]}\n"
    for note in ("the webhook of `notify` gets no messages", "the program of `notify` is not run"):
        assert note in text(unattended)
