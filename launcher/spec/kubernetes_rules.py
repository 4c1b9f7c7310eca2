"""The rules of the `kubernetes` section that no single field of it can tell."""

import posixpath
from collections.abc import Iterator

from launcher.spec import names
from launcher.spec.kubernetes import Kubernetes
from launcher.spec.problems import FieldError, Finding
from launcher.spec.subject import Subject


def labels(subject: Subject) -> Iterator[Finding]:
    """Labels, those of the node selector and the keys of annotations are such as Kubernetes takes."""
    section = subject.spec.kubernetes
    fields = (
        ("node_selector", section.node_selector, names.check_label_key, names.check_label_value),
        ("labels", section.labels, names.check_own_label_key, names.check_label_value),
        ("annotations", section.annotations, names.check_own_label_key, None),
    )
    for field, given, check_key, check_value in fields:
        for key, value in given.items():
            path = ("kubernetes", field, key)
            try:
                check_key(key)
            except FieldError as wrong:
                yield Finding(path, wrong.message, wrong.expected, wrong.remedy, on="key")
            try:
                if check_value:
                    check_value(value)
            except FieldError as wrong:
                yield Finding(path, wrong.message, wrong.expected, wrong.remedy)


def volumes_apart(subject: Subject) -> Iterator[Finding]:
    """No two volumes have one name, or one place."""
    seen: dict[tuple[str, str], int] = {}
    for index, volume in enumerate(subject.spec.kubernetes.volumes):
        for field, value in (("name", volume.name), ("mount_path", posixpath.normpath(volume.mount_path))):
            first = seen.setdefault((field, value), index)
            if first != index:
                message = f"`{value}` is the {field} of two volumes"
                yield Finding(("kubernetes", "volumes", index, field), message, "one of its own for each", "change one of them")


def is_mounted(section: Kubernetes, path: str) -> bool:
    """Tell whether a path is on a volume that the tasks mount on Kubernetes; this machine then need not have it."""
    plain = posixpath.normpath(path)
    return any(f"{plain}/".startswith(f"{posixpath.normpath(volume.mount_path)}/") for volume in section.volumes)
