"""`doctor` checks the rights that the documented Roles grant."""

import errno
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from launcher.backend.kubernetes import diagnosis, doctor, helper_pod
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.doctor import _JOBSET_RULE, ATTENDANT_RULES, RULES
from launcher.backend.kubernetes.helper_pod import FailedPodError
from launcher.images import spec_image
from launcher.plan.container_paths import CONTAINER_RUNS
from launcher.plan.spec_file import plan_file
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec
from tests.golden_messages import Golden

ROLE = Path(__file__).parents[4] / "docs" / "kubernetes-role.yaml"
ATTENDANT_ROLE = ROLE.with_name("kubernetes-attendant-role.yaml")


def rules_of(file: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return API group, resource and verbs of each rule of a Role."""
    rules = yaml.safe_load(file.read_text(encoding="utf-8"))["rules"]
    return [(rule["apiGroups"][0], resource, tuple(rule["verbs"])) for rule in rules for resource in rule["resources"]]


def test_doctor_checks_the_rights_of_the_documented_role() -> None:
    assert sorted(RULES) == sorted(rules_of(ROLE))


def test_doctor_checks_the_rights_of_the_documented_role_for_attendants() -> None:
    assert sorted([*ATTENDANT_RULES, _JOBSET_RULE]) == sorted(rules_of(ATTENDANT_ROLE))


@pytest.mark.parametrize("gang", ["", "gang: jobset, "])
def test_the_documented_role_for_attendants_includes_all_rights_of_an_attendant(gang: str, tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}, evaluator: {}}\ntrain: {workload: mnist_mlp}\n"
    file.write_text(f"version: 1\nname: digits\n{roles}kubernetes: {{{gang}attendant: true}}\n")
    spec, plan = plan_file(file, [], "kubernetes", tmp_path)
    (role,) = [one for one in manifests.objects(Run(spec, plan, spec_image(spec))) if one["kind"] == "Role"]
    allowed = {(group, resource, verb) for group, resource, verbs in rules_of(ATTENDANT_ROLE) for verb in verbs}
    granted = {(rule["apiGroups"][0], rule["resources"][0], verb) for rule in role["rules"] for verb in rule["verbs"]}
    assert granted <= allowed
    created = {"serviceaccounts", "roles", "rolebindings"}
    unused = {rule for rule in allowed - granted if rule[1] not in created}
    assert unused == (set() if gang else {("jobset.x-k8s.io", "jobsets", verb) for verb in ("get", "patch")})


@pytest.mark.parametrize(
    "options, allowed, expected",
    [
        ({}, True, [("ok", "you may create one (kubernetes.attendant)")]),
        ({}, False, [("ok", "you may not create one: create rolebindings")]),
        ({"attendant": {}}, False, [("problem", "you may not create one: create rolebindings")]),
        ({"attendant": {"service_account": "robot"}}, False, []),
    ],
    ids=["allowed", "not allowed", "not allowed but required", "has an account"],
)
def test_doctor_reports_whether_an_attendant_may_be_created(
    options: dict[str, Any], allowed: bool, expected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ClusterSpec.model_validate(
        {
            "version": 1,
            "name": "digits",
            "strategy": "single",
            "roles": {"chief": {}},
            "train": {"workload": "mnist"},
            "kubernetes": options,
        }
    )
    monkeypatch.setattr(
        doctor, "_is_allowed", lambda _cluster, _group, resource, verb: allowed or (resource, verb) != ("rolebindings", "create")
    )
    findings = list(doctor._attendant(cast("Cluster", None), spec))
    assert [(str(one.level), one.message) for one in findings] == expected


@pytest.mark.parametrize("supervise, state", [(False, "warning"), (True, "problem")])
def test_an_image_without_python_is_only_a_problem_if_the_run_needs_python(
    supervise: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(f"version: 1\nname: digits\nimage: mine\ncommand: [/train]\nsupervise: {str(supervise).lower()}\n")
    spec, _ = plan_file(file, [], "kubernetes", tmp_path)
    commands = []

    def probe(_cluster: object, _run: object, command: list[str], **_: object) -> None:
        commands.append(command[0])
        raise FailedPodError("starting a pod: no python3", "take another image", None, diagnosis.NO_PYTHON)

    monkeypatch.setattr(helper_pod, "probe", probe)
    (result,) = doctor._probe(cast("Cluster", SimpleNamespace(get=lambda *_: None)), spec)
    assert (result.level, commands) == (state, ["python3"])
    assert ("mine has no python3: DNS and the volume are not checked" in result.message) == (not supervise)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_a_claim_that_cannot_be_written_to_is_reported_with_the_cause(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(
        "version: 1\nname: digits\nstrategy: single\nroles: {chief: {}}\ntrain: {workload: mnist}\n"
        "kubernetes: {claim: team, user: 2000, egress: tasks}\n"
    )
    spec, _ = plan_file(file, [], "kubernetes", tmp_path)
    claim = {"metadata": {"name": "team"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}

    def fail(**_: object) -> None:
        raise OSError(code, os.strerror(code))

    def probe(_cluster: object, _run: object, command: list[str], *, mounted: bool) -> None:
        if not mounted:
            return
        script = command[2].replace(CONTAINER_RUNS, str(tmp_path))
        monkeypatch.setattr(tempfile, "TemporaryFile", fail)
        monkeypatch.setattr(sys, "argv", ["-c", command[3]])
        with pytest.raises(SystemExit) as exit_info:
            exec(script, {})  # noqa: S102
        raise FailedPodError(f"starting a pod: exit code 1: {exit_info.value}", "", 1)

    monkeypatch.setattr(helper_pod, "probe", probe)
    result, *others = doctor._probe(cast("Cluster", SimpleNamespace(get=lambda *_: claim)), spec)
    assert (result.what, result.level, {one.level for one in others}) == ("claim", "problem", {"ok"})
    owner = f"user {os.geteuid()}, group {tmp_path.stat().st_gid}"
    golden(result.message.replace(owner, "user OWNER, group GROUP"), result.remedy.replace(f"to {os.geteuid()},", "to OWNER,"))


def test_a_quota_of_services_that_no_run_has_is_not_used_up() -> None:
    hard = {"services.loadbalancers": "0", "services.nodeports": "0", "pods": "4"}
    quota = {"metadata": {"name": "team"}, "status": {"hard": hard, "used": {"services.loadbalancers": "0", "pods": "3"}}}
    cluster = cast("Cluster", SimpleNamespace(list_objects=lambda _kind: [quota]))
    assert list(doctor._quotas(cluster)) == []
    quota["status"]["used"]["pods"] = "4"  # type: ignore[index]
    assert [result.message for result in doctor._quotas(cluster)] == ["team is used up: pods"]
