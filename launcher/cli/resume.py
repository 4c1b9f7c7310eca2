"""The decision of `up` about an earlier run of that name: resume, ask, refuse, or start from the first step with the old one renamed."""

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
from launcher.cli.run_lookup import backends_of, command, read_stored, relative_path, runs_next_to
from launcher.errors import UsageError
from launcher.plan import code
from launcher.plan.models import Plan, Target
from launcher.runs.status import ENDED, DataLoss, Location, RunStatus, State
from launcher.spec.models import ClusterSpec

# A changed value of the spec: its path, the old value, the new value.
Change = tuple[str, Any, Any]
Decision = Literal["start", "resume", "fresh", "complete"]
# The user's choices, each with its effect.
_Choices = dict[Decision, str]

# Another `up` of that name holds the lock until its run has started; then the message can say more about that run.
_LOCK_TIMEOUT = 3.0


# Paths that reading a spec makes absolute. They are compared relative to its file, as a project may be copied or moved.
_PATHS = frozenset({"code", "train.data", "env_file"})


@dataclass(frozen=True)
class ResumeFlags:
    """The options of the command line that concern an earlier run."""

    fresh: bool
    resume: bool
    may_prompt: bool
    yes: bool = False  # the run may be another user's


@contextlib.contextmanager
def start_lock(runs: Path, name: str) -> Iterator[None]:
    """Lock out every other `up` of that name for a `with` block: two with --fresh would share one directory.

    Raises UsageError if another `up` has the lock, and LauncherError if `runs` cannot be written.
    """
    from launcher.runs import locks
    from launcher.runs.os_errors import translate_os_errors

    with contextlib.ExitStack() as stack:
        with translate_os_errors(f"starting the run {name}"):
            runs.mkdir(parents=True, exist_ok=True)
            locked = stack.enter_context(locks.exclusive(runs / f".{name}.lock", timeout=_LOCK_TIMEOUT))
        if not locked:
            raise UsageError(f"another `launcher up` is starting {name}", f"see its progress with `{command(runs, 'status', name)}`")
        yield


def check_runs_directory(up_arguments: Sequence[str], runs: Path, name: str, *, fresh: bool) -> str:
    """Return a notice if there is a run of that name beside the spec as well as in `runs`, else empty.

    Runs are under the working directory, which may differ from the spec's. If only the spec's directory has the run, `up` must not start it here
    from the first step: that raises UsageError, unless `fresh` asks for it. `up_arguments` are the words after `up`, the spec's file first.
    """
    beside_spec = runs_next_to(Path(up_arguments[0]), runs, name)
    if beside_spec is None or DEFAULT not in backends_of(beside_spec, name):
        return ""
    other = command(beside_spec, "up", *up_arguments)
    if data_exists(runs, name):
        return f"another run {name} is in {beside_spec}, beside the spec; `{other}` continues that one"
    if fresh:
        return ""
    raise UsageError(
        f"there is no run {name} in {runs}, but one in {beside_spec}, beside the spec",
        f"continue that one: `{other}`; or start another one here: --fresh",
    )


def moved_spec_note(runs: Path, plan: Plan) -> str:
    """Return the note that a run was last started from a spec of another directory, which still exists; else empty."""
    last_directory = str((read_stored(runs, plan.name, "plan", plan.target) or {}).get("spec_dir") or "")
    return (
        f"; it was last started from a spec in {relative_path(last_directory)}"
        if last_directory not in {"", plan.spec_dir} and Path(last_directory).is_dir()
        else ""
    )


def previous_status(backend: Backend, name: str) -> RunStatus | None:
    """Return the status of the existing run of that name, None if there is none."""
    try:
        return backend.status(name)
    except UsageError:  # it was never started: a failed `up` left only files
        return None


def changed(backend: Backend, spec: ClusterSpec, plan: Plan, runs: Path) -> list[Change] | None:
    """Return the changes from the spec that the run was last started with, None if that is not known."""
    from launcher.spec import container_rules
    from launcher.spec.loader import changes, dump, dump_with_new_defaults
    from launcher.spec.role_programs import volumes_of

    known = backend.spec(spec.name)
    if known is None:
        return None
    old, new = dump_with_new_defaults(known), dump(spec)
    if BACKENDS[plan.target].stores_locally:
        old.pop("storage", None)
        new.pop("storage", None)
    for dumped in (old, new):
        (dumped.get("storage") or {}).pop("access", None)  # an existing claim keeps its own
        dumped.pop("notify", None)  # the receivers of messages do not matter to training
    directory = str((read_stored(runs, spec.name, "plan", plan.target) or {}).get("spec_dir") or "")
    old, new = _with_relative_volumes(old, plan.target, directory), _with_relative_volumes(new, plan.target, plan.spec_dir)
    old, new = _with_effective_modes(old), _with_effective_modes(new)
    paths = set(_PATHS)
    if in_namespaces(plan.target) and spec.train is not None and container_rules.is_mounted(volumes_of(spec), spec.train.data):
        paths.remove("train.data")  # of a volume, not of the project
    return [change for change in changes(old, new) if change[0] not in paths or not _moved(change, directory, plan.spec_dir)]


def _with_relative_volumes(dumped: dict[str, Any], target: Target, directory: str) -> dict[str, Any]:
    """Return a dumped spec with the directories of its volumes relative to `directory`, because a project may be moved.

    A cluster does not use these directories: for one they become None.
    """
    volumes = [dict(volume) for volume in dumped.get("volumes") or ()]
    for volume in volumes:
        if volume.get("path"):
            volume["path"] = None if in_namespaces(target) else os.path.relpath(volume["path"], directory or "/")
    return {**dumped, "volumes": volumes}


def _with_effective_modes(dumped: dict[str, Any]) -> dict[str, Any]:
    """Return a dumped spec whose volumes have the effective `read_only`.

    Earlier versions dumped every volume of `kubernetes.volumes` without `read_only` as read-only, even an `emptyDir`; for that, such a value counts as left out.
    """
    section = dict(dumped.get("kubernetes") or {})
    section["volumes"] = [_with_mode(volume, ignored=True) for volume in section.get("volumes") or ()]
    return {**dumped, "kubernetes": section, "volumes": [_with_mode(volume) for volume in dumped.get("volumes") or ()]}


def _with_mode(dumped: dict[str, Any], *, ignored: bool | None = None) -> dict[str, Any]:
    """Return a dumped volume with the effective `read_only`. For an `emptyDir`, the value `ignored` counts as left out."""
    from launcher.spec.kubernetes import Volume

    volume, read_only = Volume.model_construct(**dumped), dumped.get("read_only")
    return {**dumped, "read_only": volume.is_mounted_read_only(None if volume.is_empty_dir and read_only is ignored else read_only)}


def _moved(change: Change, old_directory: str, directory: str) -> bool:
    """Return whether a changed path is the same relative to the spec's directory; the old directory of a cluster's run is not known."""
    _, old, new = change
    if not (isinstance(old, str) and isinstance(new, str) and os.path.isabs(old) and os.path.isabs(new)):  # noqa: PTH117
        return False
    if not old_directory:
        below = [part for part in PurePath(os.path.relpath(new, directory)).parts if part != os.pardir]
        below = below or [PurePath(new).name]
        return list(PurePath(old).parts[-len(below) :]) == below
    return os.path.relpath(old, old_directory) == os.path.relpath(new, directory)


def decide_resume(
    old: RunStatus | None, changes: Sequence[Change] | None, flags: ResumeFlags, runs: Path, *, digest: str = "", elsewhere: bool = False
) -> Decision:
    """Return what `up` is to do; `changes` is None if the spec of the old run is not known.

    `digest` is the new spec's. `elsewhere`: another machine started the old run, and its engine knows only the digest of its spec.
    Raises UsageError if the run still runs, or if only the user can decide, and there is no prompt or the user chooses to quit.
    """
    if old is not None and old.state not in ENDED:
        raise UsageError(
            f"{old.name} runs already ({old.state})" + (f", started by {old.user}" if not old.mine else ""),
            f"follow it with `{command(runs, 'logs', '-f', old.name, on=old.backend)}`,"
            f" or stop it with `{command(runs, 'down', old.name, on=old.backend)}`",
        )
    owners.confirm(old, "continue", yes=flags.yes, may_prompt=flags.may_prompt)
    if flags.fresh:
        return "fresh"
    if old is None:
        return "start"
    if old.data_lost and not (changes == [] and old.state is State.SUCCEEDED):
        return _ask_about_data(old.data_lost, flags)
    if changes is None:
        if decision := _decide_without_spec(old, flags, digest, elsewhere=elsewhere):
            return decision
        changes = []
    if flags.resume or only_longer(changes):
        return "resume"
    if changes:
        return _ask_about_changes(old.name, changes, flags)
    return "resume" if old.state is not State.SUCCEEDED else _decide_succeeded(old, flags, digest)


def _decide_without_spec(old: RunStatus, flags: ResumeFlags, digest: str, *, elsewhere: bool) -> Decision | None:
    """Return what `up` is to do if the spec of the old run is not known; None if it counts as unchanged."""
    has_started = old.state is State.UNKNOWN or any(task.started is not None for task in old.tasks)
    if not elsewhere and (in_namespaces(old.backend) or not has_started):
        return "start"
    if flags.resume:
        return None
    if not elsewhere:
        return _ask(f"the spec with which the run {old.name} was started cannot be read", flags)
    if code.without_code(old.spec_digest) != code.without_code(digest):
        return _ask(f"the run {old.name} was started elsewhere, {_spec_origin(old)}", flags)
    return None


def _decide_succeeded(old: RunStatus, flags: ResumeFlags, digest: str) -> Decision:
    """Return `complete`, or the user's choice if the code has changed."""
    changed_since = code.code_differs(old.spec_digest, digest)
    return _ask(f"{old.name} is complete, and its code has changed since", flags) if changed_since else "complete"


def only_longer(changes: Sequence[Change]) -> bool:
    """Return whether the only change is that there are more steps or epochs: the user can only mean to resume."""
    if len(changes) != 1:
        return False
    path, old, new = changes[0]
    return path in ("train.steps", "train.epochs") and isinstance(old, int) and isinstance(new, int) and new > old


def _spec_origin(old: RunStatus) -> str:
    return "from another spec" if old.spec_digest else "from an unknown spec"


def change_table(changes: Sequence[Change]) -> str:
    """Return changes of a spec as a table."""
    from launcher.cli.tables import plain

    return plain(("PATH", "WAS", "IS"), [(path, _shown(old), _shown(new)) for path, old, new in changes])


def _ask_about_changes(name: str, changes: Sequence[Change], flags: ResumeFlags) -> Decision:
    print(f"the spec of {name} has changed since the last start:\n\n{change_table(changes)}\n", file=sys.stderr)
    return _ask(f"the spec of {name} has changed since the last start: {', '.join(path for path, _, _ in changes)}", flags)


def _ask_about_data(loss: DataLoss, flags: ResumeFlags) -> Decision:
    only_fresh: _Choices = {"fresh": "start from the first step on a new claim"}
    if loss.code != "replaced":
        return _ask(loss.message, flags, only_fresh)
    if flags.resume:
        return "resume"
    return _ask(loss.message, flags, {"resume": "continue from the data on that one", "fresh": "start from the first step"})


def _ask(why: str, flags: ResumeFlags, choices: _Choices | None = None) -> Decision:
    """Return the choice of the user. Raises UsageError if there is no prompt, or the user chooses nothing."""
    choices = choices or {"resume": "continue from its last checkpoint", "fresh": "start from the first step (the old run is renamed)"}
    remedy = "add " + ", or ".join(f"--{choice} to {what}" for choice, what in choices.items())
    if not flags.may_prompt:
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


def describe_start(status: RunStatus, run_dir: str) -> str:
    """Describe what a run continues from: a checkpoint, or its beginning. `run_dir` is its new run directory, empty for none."""
    if not run_dir:
        stays = f"; its data stays in {status.run_dir}" if status.run_dir else ""
        return f"from its beginning, as its spec has no `storage`{stays}"
    step = last_checkpoint(status) if status.data_lost is None else None
    if step is not None:
        return f"from the checkpoint of step {step:,}"
    if status.local_run_dir is None:  # it is with the backend and cannot be read from here
        return f"from its last checkpoint in {status.run_dir}, or from the start if there is none"
    return "from the start, as there is no checkpoint yet"


def last_checkpoint(status: RunStatus) -> int | None:
    """Return the step of the last checkpoint: as the run reported it, else by the names of its files."""
    if status.checkpoint_step is not None:
        return status.checkpoint_step
    files = (status.local_run_dir / "checkpoints").glob("ckpt-*.index") if status.local_run_dir else ()
    steps = [int(step) for file in files if (step := file.stem.removeprefix("ckpt-")).isdecimal()]
    return max(steps, default=None)


def data_exists(runs: Path, name: str) -> bool:
    """Return whether the run directory of that name has any content, even of no run."""
    directory = runs / name
    if directory.is_dir() and not directory.is_symlink():
        return any(directory.iterdir())
    return os.path.lexists(directory)


def rename_old_run(backend: Backend, name: str, old: RunStatus | None) -> tuple[Location, ...]:
    """Move the data of a run to `<name>.<time>`, and return its new locations; none if it had no volume.

    Orphans of a killed supervisor are ended first, since they would save into the directory of the new run.
    Raises LauncherError if some remain, or the data cannot be moved.
    """
    if old is not None:
        backend.stop(name)
    return backend.rename(name, f"{name}.{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}")
