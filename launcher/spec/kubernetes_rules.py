"""The rules of the `kubernetes` section that no single field of it can tell."""

from collections.abc import Iterator

from launcher.spec import names, programs
from launcher.spec.kubernetes import SIDECARS_SINCE, parse_version
from launcher.spec.problems import FieldError, Finding, path_text
from launcher.spec.rule_context import RuleContext


def labels(subject: RuleContext) -> Iterator[Finding]:
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


def sidecars_are_native(subject: RuleContext) -> Iterator[Finding]:
    """The oldest Kubernetes that a run has to work on ends sidecars with their task."""
    version = subject.spec.kubernetes.version
    of_sidecars = [path for path, _ in programs.containers_of(subject.spec) if path[-2] == "sidecars"]
    if version is not None and of_sidecars and parse_version(version) < SIDECARS_SINCE:
        message = f"Kubernetes {version} does not end sidecars with their task, and there are `{path_text(of_sidecars[0][:-1])}`"
        since = ".".join(map(str, SIDECARS_SINCE))
        yield Finding(
            ("kubernetes", "version"),
            message,
            f'"{since}" or newer',
            f'write "{since}", on a cluster that is so new; or remove the sidecars',
        )


def one_mounts(subject: RuleContext) -> Iterator[Finding]:
    """One task can mount the run's volume where it is the only one of its role: pods of one role are alike."""
    spec = subject.spec
    count = programs.leads(spec).replicas
    if spec.storage is not None and spec.storage.mount == "one" and count > 1:
        message = f"`mount: one` is for a task that leads and is alone in its role; worker-0 of {count} workers leads"
        remedy = "add `chief: {}` to `roles`, which then mounts the volume, or write `mount: all`"
        yield Finding(("storage", "mount"), message, "a chief, or `all`", remedy)
