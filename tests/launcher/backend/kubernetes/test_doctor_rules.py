"""`doctor` asks for the rights that the documented Role gives."""

from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from launcher.backend.kubernetes import doctor
from launcher.backend.kubernetes.client import Cluster
from launcher.backend.kubernetes.doctor import _JOBSET_RULE, ATTENDANT_RULES, RULES
from launcher.cli.planning import plan_file
from launcher.images import image_for
from launcher.render.kubernetes import manifests
from launcher.render.kubernetes.objects import Run
from launcher.spec.models import ClusterSpec

ROLE = Path(__file__).parents[4] / "docs" / "kubernetes-role.yaml"


def test_doctor_asks_for_the_rights_of_the_documented_role() -> None:
    given = yaml.safe_load(ROLE.read_text(encoding="utf-8"))["rules"]
    assert sorted(RULES) == sorted(
        (rule["apiGroups"][0], resource, tuple(rule["verbs"])) for rule in given for resource in rule["resources"]
    )


def _of_attendants() -> list[tuple[str, str, tuple[str, ...]]]:
    given = yaml.safe_load(ROLE.with_name("kubernetes-attendant-role.yaml").read_text(encoding="utf-8"))["rules"]
    return [(rule["apiGroups"][0], resource, tuple(rule["verbs"])) for rule in given for resource in rule["resources"]]


def test_doctor_asks_for_the_rights_of_the_documented_role_of_who_makes_attendants() -> None:
    assert sorted([*ATTENDANT_RULES, _JOBSET_RULE]) == sorted(_of_attendants())


@pytest.mark.parametrize("gang", ["", "gang: jobset, "])
def test_who_makes_an_attendant_may_all_that_its_role_gives(gang: str, tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    roles = "strategy: parameter_server\nroles: {chief: {}, ps: {}, worker: {}, evaluator: {}}\ntrain: {workload: mnist_mlp}\n"
    file.write_text(f"version: 1\nname: digits\n{roles}kubernetes: {{{gang}attendant: true}}\n")
    spec, plan = plan_file(file, [], "kubernetes", tmp_path)
    (role,) = [one for one in manifests.objects(Run(spec, plan, image_for(spec))) if one["kind"] == "Role"]
    allowed = {(group, resource, verb) for group, resource, verbs in _of_attendants() for verb in verbs}
    given = {(rule["apiGroups"][0], rule["resources"][0], verb) for rule in role["rules"] for verb in rule["verbs"]}
    assert given <= allowed
    made = {"serviceaccounts", "roles", "rolebindings"}
    unused = {rule for rule in allowed - given if rule[1] not in made}
    assert unused == (set() if gang else {("jobset.x-k8s.io", "jobsets", verb) for verb in ("get", "patch")})


@pytest.mark.parametrize(
    "options, may, told",
    [
        ({}, True, [("ok", "you may create one (kubernetes.attendant)")]),
        ({}, False, [("ok", "you may not create one: create rolebindings")]),
        ({"attendant": {}}, False, [("problem", "you may not create one: create rolebindings")]),
        ({"attendant": {"service_account": "robot"}}, False, []),
    ],
    ids=["may", "may not", "may not and wants", "has an account"],
)
def test_doctor_says_whether_an_attendant_may_be_made(
    options: dict[str, Any], may: bool, told: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
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
        doctor, "_is_allowed", lambda _cluster, _group, resource, verb: may or (resource, verb) != ("rolebindings", "create")
    )
    found = list(doctor._attendant(cast("Cluster", None), spec))
    assert [(str(one.level), one.message) for one in found] == told
