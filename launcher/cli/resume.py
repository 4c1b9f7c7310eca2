"""The decision of `up` about an earlier run of that name: go on, ask, refuse, or start from the first step with the old one renamed."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, Literal

from launcher.backend.model import Backend
from launcher.backend.registry import BACKENDS, DEFAULT, in_namespaces
from launcher.cli import owners
from launcher.cli.run_lookup import backends_of, command, relative_path, runs_next_to, stored
from launcher.errors import UsageError
from launcher.plan import code
from launcher.plan.models import Plan, Target
from launcher.runs.status import ENDED, Location, Loss, RunStatus, State
from launcher.spec.models import ClusterSpec

# One value of the spec that is not what it was: its path, the old value, the new one.
Change = tuple[str, Any, Any]
Decision = Literal["start", "resume", "fresh", "complete"]
# The user's choices, each with its effect.
_Choices = dict[Decision, str]

# Another `up` of that name holds the lock until its run is on its way; then there is more to say than that it is there.
_LOCK_TIMEOUT = 3.0


# Paths that are absolute once a spec is read. They are compared as from its file: a project may be copied or moved.
_PATHS = frozenset({"code", "train.data", "env_file"})


@dataclass(frozen=True)
class ResumeFlags:
    """The options about an earlier run that the command line has."""

    fresh: bool
    resume: bool
    may_prompt: bool
    yes: bool = False  # another user's run is meant


@contextlib.contextmanager
def exclusive(runs: Path, name: str) -> Iterator[None]:
    """Lock out every other `up` of that name for a `with` block: two that start afresh would share one directory.

    Raises UsageError when another is at it, and LauncherError when `runs` cannot be written.
    """
    from launcher.runs import locks
    from launcher.runs.os_errors import translate_os_errors

    with contextlib.ExitStack() as held:
        with translate_os_errors(f"starting the run {name}"):
            runs.mkdir(parents=True, exist_ok=True)
            locked = held.enter_context(locks.exclusive(runs / f".{name}.lock", timeout=_LOCK_TIMEOUT))
        if not locked:
            raise UsageError(f"another `launcher up` is starting {name}", f"see how it goes with `{command(runs, 'status', name)}`")
        yield


def check_runs_directory(started_by: Sequence[str], runs: Path, name: str, *, fresh: bool) -> str:
    """Return what a person should know about where the run on this machine is, empty for nothing.

    A run is kept in the working directory, which need not be its spec's. A run that was started in its spec's directory must not start from the
    first step in this one: that raises UsageError, unless `fresh` asks for it. `started_by` are the words after `up`, the spec's file first.
    """
    found = runs_next_to(Path(started_by[0]), runs, name)
    if found is None or DEFAULT not in backends_of(found, name):
        return ""
    other = command(found, "up", *started_by)
    if is_there(runs, name):
        return f"another run {name} is in {found}, beside the spec; `{other}` goes on with that one"
    if fresh:
        return ""
    raise UsageError(
        f"there is no run {name} in {runs}, but one in {found}, beside the spec",
        f"go on with that one: `{other}`; or start another one here: --fresh",
    )


def other_spec(runs: Path, plan: Plan) -> str:
    """Return in words that a run was started from a spec of another directory last, which is still there; empty where it was not."""
    before = str((stored(runs, plan.name, "plan", plan.target) or {}).get("spec_dir") or "")
    return (
        f"; it was started from a spec in {relative_path(before)} before"
        if before not in {"", plan.spec_dir} and Path(before).is_dir()
        else ""
    )


def previous_status(backend: Backend, name: str) -> RunStatus | None:
    """Return the status of the run of that name that is there already, or None when there is none."""
    try:
        return backend.status(name)
    except UsageError:  # it was never started: leftovers of a failed `up`
        return None


def changed(backend: Backend, spec: ClusterSpec, plan: Plan, runs: Path) -> list[Change] | None:
    """Return what differs from the spec that the run was started with last, or None where that is not known."""
    from launcher.spec import container_rules
    from launcher.spec.loader import changes, dump, redumped
    from launcher.spec.role_programs import volumes_of

    known = backend.spec(spec.name)
    if known is None:
        return None
    old, new = redumped(known), dump(spec)
    if BACKENDS[plan.target].stores_locally:
        old.pop("storage", None)
        new.pop("storage", None)
    for one in (old, new):
        (one.get("storage") or {}).pop("access", None)  # a claim that is there keeps its own
        one.pop("notify", None)  # other receivers of messages do not make it another run
    directory = str((stored(runs, spec.name, "plan", plan.target) or {}).get("spec_dir") or "")
    old, new = _volumes_from(old, plan.target, directory), _volumes_from(new, plan.target, plan.spec_dir)
    old, new = _as_mounted(old), _as_mounted(new)
    paths = set(_PATHS)
    if in_namespaces(plan.target) and spec.train is not None and container_rules.is_mounted(volumes_of(spec), spec.train.data):
        paths.remove("train.data")  # of a volume, not of the project
    return [change for change in changes(old, new) if change[0] not in paths or not _moved(change, directory, plan.spec_dir)]


def _volumes_from(dumped: dict[str, Any], target: Target, directory: str) -> dict[str, Any]:
    """Return a dumped spec with the directories of its volumes as from the spec's, so that a project may be moved; a cluster has none of them."""
    volumes = [dict(volume) for volume in dumped.get("volumes") or ()]
    for volume in volumes:
        if volume.get("path"):
            volume["path"] = None if in_namespaces(target) else os.path.relpath(volume["path"], directory or "/")
    return {**dumped, "volumes": volumes}


def _as_mounted(dumped: dict[str, Any]) -> dict[str, Any]:
    """Return a dumped spec whose volumes say whether they can only be read, as that is where they leave it out.

    Earlier versions dumped `kubernetes.volumes` that left it out as read-only, an `emptyDir` too: there, that says nothing.
    """
    section = dict(dumped.get("kubernetes") or {})
    section["volumes"] = [_with_mode(volume, says_nothing=True) for volume in section.get("volumes") or ()]
    return {**dumped, "kubernetes": section, "volumes": [_with_mode(volume) for volume in dumped.get("volumes") or ()]}


def _with_mode(dumped: dict[str, Any], *, says_nothing: bool | None = None) -> dict[str, Any]:
    """Return a dumped volume with the effective `read_only`. Of an `emptyDir`, a value that is `says_nothing` counts as left out."""
    from launcher.spec.kubernetes import Volume

    volume, read_only = Volume.model_construct(**dumped), dumped.get("read_only")
    return {**dumped, "read_only": volume.can_only_be_read(None if volume.is_scratch and read_only is says_nothing else read_only)}


def _moved(change: Change, old_directory: str, directory: str) -> bool:
    """Return whether a changed path is the same as seen from the spec's directory; of a cluster's run its old one is not known."""
    _, old, new = change
    if not (isinstance(old, str) and isinstance(new, str) and os.path.isabs(old) and os.path.isabs(new)):  # noqa: PTH117
        return False
    if not old_directory:
        below = [part for part in PurePath(os.path.relpath(new, directory)).parts if part != os.pardir]
        below = below or [PurePath(new).name]
        return list(PurePath(old).parts[-len(below) :]) == below
    return os.path.relpath(old, old_directory) == os.path.relpath(new, directory)


def decide_resume(
    old: RunStatus | None, changes: Sequence[Change] | None, asked: ResumeFlags, runs: Path, *, digest: str = "", elsewhere: bool = False
) -> Decision:
    """Return what `up` is to do; `changes` is None when it is not known which spec the old run had.

    `digest` is the new spec's. `elsewhere`: the old run was started there, and its engine knows only the digest of its spec.
    Raises UsageError when the run still runs, or when only the user can decide and cannot be asked.
    """
    if old is not None and old.state not in ENDED:
        raise UsageError(
            f"{old.name} runs already ({old.state})" + (f", started by {old.user}" if not old.mine else ""),
            f"follow it with `{command(runs, 'logs', '-f', old.name, on=old.backend)}`,"
            f" or stop it with `{command(runs, 'down', old.name, on=old.backend)}`",
        )
    owners.confirm(old, "go on with", yes=asked.yes, may_prompt=asked.may_prompt)
    if asked.fresh:
        return "fresh"
    if old is None:
        return "start"
    if old.data_lost and not (changes == [] and old.state is State.SUCCEEDED):
        return _ask_about_data(old.data_lost, asked)
    if changes is None:
        if decision := _without_spec(old, asked, digest, elsewhere=elsewhere):
            return decision
        changes = []
    if asked.resume or only_longer(changes):
        return "resume"
    if changes:
        return _ask_about(old.name, changes, asked)
    return "resume" if old.state is not State.SUCCEEDED else _complete(old, asked, digest)


def _without_spec(old: RunStatus, asked: ResumeFlags, digest: str, *, elsewhere: bool) -> Decision | None:
    """Return what `up` is to do where the spec of the old run is not known; None where it counts as unchanged."""
    began = old.state is State.UNKNOWN or any(task.started is not None for task in old.tasks)
    if not elsewhere and (in_namespaces(old.backend) or not began):  # it was never started, or that was refused
        return "start"
    if asked.resume:
        return None
    if not elsewhere:
        return _ask(f"the spec with which the run {old.name} was started cannot be read", asked)
    if code.without_code(old.spec_digest) != code.without_code(digest):
        return _ask(f"the run {old.name} was started elsewhere, {_other_spec(old)}", asked)
    return None


def _complete(old: RunStatus, asked: ResumeFlags, digest: str) -> Decision:
    changed_since = code.is_other(old.spec_digest, digest)
    return _ask(f"{old.name} is complete, and its code has changed since", asked) if changed_since else "complete"


def only_longer(changes: Sequence[Change]) -> bool:
    """Return whether all that changed is that there are more steps or epochs to train: nothing but going on can be meant."""
    if len(changes) != 1:
        return False
    path, old, new = changes[0]
    return path in ("train.steps", "train.epochs") and isinstance(old, int) and isinstance(new, int) and new > old


def _other_spec(old: RunStatus) -> str:
    return "from another spec" if old.spec_digest else "from a spec that is not known any more"


def change_table(changes: Sequence[Change]) -> str:
    """Return changes of a spec as a table."""
    from launcher.cli.tables import plain

    return plain(("PATH", "WAS", "IS"), [(path, _shown(old), _shown(new)) for path, old, new in changes])


def _ask_about(name: str, changes: Sequence[Change], asked: ResumeFlags) -> Decision:
    print(f"the spec of {name} has changed since it ran last:\n\n{change_table(changes)}\n", file=sys.stderr)
    return _ask(f"the spec of {name} has changed since it ran last: {', '.join(path for path, _, _ in changes)}", asked)


def _ask_about_data(loss: Loss, asked: ResumeFlags) -> Decision:
    only_fresh: _Choices = {"fresh": "start from the first step on a new claim"}
    if loss.code != "replaced":
        return _ask(loss.message, asked, only_fresh)
    if asked.resume:
        return "resume"
    return _ask(loss.message, asked, {"resume": "continue from the data on that one", "fresh": "start from the first step"})


def _ask(why: str, asked: ResumeFlags, choices: _Choices | None = None) -> Decision:
    """Return the choice of the user. Raises UsageError if the user cannot be asked, or chooses nothing."""
    choices = choices or {"resume": "go on from its last checkpoint", "fresh": "start from the first step (the old run is renamed)"}
    remedy = "say " + ", or ".join(f"--{choice} to {what}" for choice, what in choices.items())
    if not asked.may_prompt:
        raise UsageError(why, remedy)
    import typer

    print(why, file=sys.stderr)
    print("; ".join(f"{choice}: {what}" for choice, what in choices.items()), file=sys.stderr)
    answer = typer.prompt(f"{', '.join(choices)} or quit?", default="quit", err=True)
    chosen: Decision | None = next((choice for choice in choices if answer in {choice, choice[0]}), None)
    if chosen is None:
        raise UsageError("nothing was started", remedy)
    return chosen


def _shown(value: Any) -> str:
    return "(not set)" if value is None else str(value)


def from_where(status: RunStatus, run_dir: str) -> str:
    """Describe where a run continues from: a checkpoint, or its beginning. `run_dir` is its run directory from now on, empty for none."""
    if not run_dir:
        stays = f"; its data stays in {status.run_dir}" if status.run_dir else ""
        return f"from its beginning, as its spec has no `storage`{stays}"
    step = last_checkpoint(status) if status.data_lost is None else None
    if step is not None:
        return f"from the checkpoint of step {step:,}"
    if status.directory is None:  # where its backend keeps it, which cannot be looked into from here
        return f"from its last checkpoint in {status.run_dir}, or from the start where there is none"
    return "from the start, as there is no checkpoint yet"


def last_checkpoint(status: RunStatus) -> int | None:
    """Return the step of the last checkpoint: as the run reported it, else from the names of its files."""
    if status.checkpoint_step is not None:
        return status.checkpoint_step
    files = (status.directory / "checkpoints").glob("ckpt-*.index") if status.directory else ()
    steps = [int(step) for file in files if (step := file.stem.removeprefix("ckpt-")).isdecimal()]
    return max(steps, default=None)


def is_there(runs: Path, name: str) -> bool:
    """Return whether there is anything where the run of that name keeps its data, whether or not it can be read as a run."""
    directory = runs / name
    if directory.is_dir() and not directory.is_symlink():
        return any(directory.iterdir())
    return os.path.lexists(directory)


def rename_old_run(backend: Backend, name: str, old: RunStatus | None) -> tuple[Location, ...]:
    """Move what a run stored to `<name>.<time>`, and return where it is now, nothing where it is gone.

    Orphans of a killed supervisor are ended first: they would go on saving, into the directory of the new run.
    Raises LauncherError when some of that stays, or it cannot be moved.
    """
    if old is not None:
        backend.stop(name)
    return backend.rename(name, f"{name}.{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}")
