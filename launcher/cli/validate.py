"""`launcher validate`: check specs without running anything."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import Json, Set
from launcher.errors import Problem, SpecError
from launcher.formats import count
from launcher.plan.target_rules import TARGET_RULES
from launcher.spec.models import ClusterSpec
from launcher.spec.names import can_be_secret
from launcher.spec.role_programs import program_summary, storage_of

EXAMPLES = (
    ("launcher validate cluster.yaml", "prints ok, or every problem with its line"),
    ("launcher validate examples/*.yaml", "many at once"),
)


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="The specs.", show_default=False)],
    *,
    set_options: Set = None,
    as_json: Json = False,
) -> None:
    """Check specs; every problem is reported at once."""
    from launcher.spec.loader import load

    problems: list[Problem] = []
    for file in files:
        try:
            spec = load(file, set_options or [])
        except SpecError as error:
            problems += error.problems
        else:
            document = {"file": str(file), "ok": True, "name": spec.name, "tasks": _tasks(spec), "notices": _notices(spec)}
            print(json.dumps(document) if as_json else _ok(file, spec))
    if problems:
        raise SpecError(problems)


def _tasks(spec: ClusterSpec) -> dict[str, int]:
    return {role: getattr(spec.roles, role).replicas for role in ("chief", "ps", "worker", "evaluator") if getattr(spec.roles, role)}


def _ok(file: Path, spec: ClusterSpec) -> str:
    tasks = _tasks(spec)
    roles = ", ".join(count(number, role) for role, number in tasks.items())
    valid = f"{file}: ok: {count(sum(tasks.values()), 'task')} ({roles}), {spec.strategy}, {program_summary(spec)}"
    return "\n".join([valid, *(f"notice: {file}: {notice}" for notice in _notices(spec))])


def _notices(spec: ClusterSpec) -> list[str]:
    no_storage = "in containers the run has no volume, no RUN_DIR and no TensorBoard, as its images are your own; `storage: {}` adds them"
    notices = [no_storage] if storage_of(spec) is None else []
    notices += [f"{old} is deprecated: {instead}" for old, instead in _deprecated(spec)]
    return notices + [f"{rules.display_name}: {notice}" for rules in TARGET_RULES.values() for notice in rules.notices(spec)]


def _deprecated(spec: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Yield the deprecated fields of a spec, each with what to write instead."""
    section = spec.kubernetes
    if not section.tensorboard:
        yield "kubernetes.tensorboard", "write `tensorboard: false` at the top of the spec, for Compose, too"
    if section.volumes:
        yield "kubernetes.volumes", "write `volumes` at the top of the spec, for Compose, too"
    for source in section.env_from:
        if source.secret and source.name and not source.optional and can_be_secret(source.name):
            yield "kubernetes.env_from", f"write `env: {{{source.name}: {{secret: {source.secret}, key: {source.key}}}}}`, for all backends"
