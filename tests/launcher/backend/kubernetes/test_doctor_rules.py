"""What `doctor` asks for is what the documented Role gives."""

from pathlib import Path

import yaml

from launcher.backend.kubernetes.doctor import RULES

ROLE = Path(__file__).parents[4] / "docs" / "kubernetes-role.yaml"


def test_doctor_asks_for_the_rights_of_the_documented_role() -> None:
    given = yaml.safe_load(ROLE.read_text(encoding="utf-8"))["rules"]
    assert sorted(RULES) == sorted(
        (rule["apiGroups"][0], resource, tuple(rule["verbs"])) for rule in given for resource in rule["resources"]
    )
