"""What the models know about paths."""

from launcher.spec import sections
from launcher.spec.kubernetes import Toleration
from launcher.spec.models import ClusterSpec, Role, Storage
from trainer.settings import Checkpoints


def test_a_path_leads_to_its_section() -> None:
    assert sections.section_at(ClusterSpec, ()) is ClusterSpec
    assert sections.section_at(ClusterSpec, ("roles", "worker")) is Role
    assert sections.section_at(ClusterSpec, ("train", "checkpoint")) is Checkpoints
    assert sections.section_at(ClusterSpec, ("kubernetes", "tolerations", 3)) is Toleration
    assert sections.section_at(ClusterSpec, ("train", "params", "x")) is None
    assert sections.section_at(ClusterSpec, ("name",)) is None
    assert sections.section_at(ClusterSpec, ("nowhere", "x")) is None


def test_keys_are_those_users_write() -> None:
    assert sections.keys(Storage) == ("size", "class", "mount", "access")


def test_choices_of_a_field() -> None:
    assert "mirrored" in sections.choices(ClusterSpec, ("strategy",))
    assert sections.choices(ClusterSpec, ("name",)) == ()


def test_every_place_of_a_key_is_found() -> None:
    assert list(sections.places_of(ClusterSpec, "steps")) == [("train", "steps")]
    assert ("roles", "ps", "replicas") in sections.places_of(ClusterSpec, "replicas")
