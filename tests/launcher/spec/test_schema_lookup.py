"""Paths of a spec, looked up in the models."""

from launcher.spec import schema_lookup
from launcher.spec.kubernetes import Toleration
from launcher.spec.models import ClusterSpec, Role, Storage
from trainer.settings import CheckpointSettings


def test_a_path_leads_to_its_section() -> None:
    assert schema_lookup.section_at(ClusterSpec, ()) is ClusterSpec
    assert schema_lookup.section_at(ClusterSpec, ("roles", "worker")) is Role
    assert schema_lookup.section_at(ClusterSpec, ("train", "checkpoint")) is CheckpointSettings
    assert schema_lookup.section_at(ClusterSpec, ("kubernetes", "tolerations", 3)) is Toleration
    assert schema_lookup.section_at(ClusterSpec, ("train", "params", "x")) is None
    assert schema_lookup.section_at(ClusterSpec, ("name",)) is None
    assert schema_lookup.section_at(ClusterSpec, ("nowhere", "x")) is None


def test_keys_are_spelled_as_in_specs() -> None:
    assert schema_lookup.keys(Storage) == ("size", "class", "mount", "access")


def test_choices_of_a_field() -> None:
    assert "mirrored" in schema_lookup.choices(ClusterSpec, ("strategy",))
    assert schema_lookup.choices(ClusterSpec, ("name",)) == ()


def test_every_path_of_a_key_is_found() -> None:
    assert list(schema_lookup.paths_of(ClusterSpec, "steps")) == [("train", "steps")]
    assert ("roles", "ps", "replicas") in schema_lookup.paths_of(ClusterSpec, "replicas")
