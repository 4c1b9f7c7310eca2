"""Names that DNS and Kubernetes accept, and names that they refuse."""

from collections.abc import Callable

import pytest

from launcher.spec import names
from launcher.spec.problems import FieldError


@pytest.mark.parametrize("name", ["a", "mnist", "mnist-2", "a" * 51])
def test_names_of_runs(name: str) -> None:
    assert names.check_run_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "2a", "-a", "a-", "a_b", "a.b", "a b", "a\n", "ä", "a" * 52])
def test_the_remedy_for_an_invalid_name_is_a_valid_name(name: str) -> None:
    with pytest.raises(FieldError) as caught:
        names.check_run_name(name)
    suggested = caught.value.remedy.removeprefix("write ").split(",")[0]
    assert names.check_run_name(suggested) == suggested


def test_the_longest_name_leaves_room_for_every_task() -> None:
    assert len("a" * names.MAX_NAME_LENGTH + "-worker-9999") == 63


@pytest.mark.parametrize(
    "image",
    [
        "trainer",
        "trainer:1.0",
        "registry.example.com:5000/team/trainer:1.0",
        "ghcr.io/a/b@sha256:" + "0" * 64,
        "localhost/x_y:latest",
        "a/b/c-d.e",
    ],
)
def test_images(image: str) -> None:
    assert names.check_image(image) == image


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::", "localhost", "my-host.example.com"])
def test_hosts(host: str) -> None:
    assert names.check_host(host) == host


@pytest.mark.parametrize(
    "check, wrong",
    [
        (names.check_image, "My/Image"),
        (names.check_image, "a b"),
        (names.check_image, ""),
        (names.check_host, "300.0.0.1"),
        (names.check_host, "a b"),
        (names.check_host, ""),
        (names.check_namespace, "a.b"),
        (names.check_namespace, "a" * 64),
        (names.check_object_name, "A"),
        (names.check_task_variable, "A-B"),
        (names.check_task_variable, "TF_CONFIG"),
        (names.check_task_variable, "TRAINER_EVENTS"),
        (names.check_label_key, "a/b/c"),
        (names.check_label_key, ""),
        (names.check_label_value, "a" * 64),
        (names.check_mount_path, "/data/../runs/mnist"),
        (names.check_mount_path, "//runs"),
    ],
)
def test_invalid_names_are_refused(check: Callable[[str], object], wrong: str) -> None:
    with pytest.raises(FieldError) as caught:
        check(wrong)
    assert caught.value.remedy
