"""`launcher up`: run a spec, and follow it until it is done."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.backend.model import Backend, ClusterRef, PlannedRun, Prepares, Reconciles, Reserves
from launcher.backend.registry import BACKENDS, DEFAULT, in_namespaces
from launcher.cli import streams
from launcher.cli.errors import INTERRUPTED
from launcher.cli.options import Context, Json, Namespace, On, Runs, Set
from launcher.cli.run_lookup import DEFAULT_RUNS, command, runs_directory
from launcher.errors import UsageError
from launcher.plan.models import Plan
from launcher.runs.status import RunStatus, State

if TYPE_CHECKING:
    from launcher.cli.follow import View
    from launcher.spec.models import ClusterSpec

EXAMPLES = (
    ("launcher up cluster.yaml", "runs it and shows its progress; Ctrl-C saves a checkpoint and stops it"),
    ("launcher up cluster.yaml", "again: continues from the last checkpoint"),
    ("launcher up cluster.yaml --set train.steps=500 --fresh", "another value, from the first step; the old run is renamed"),
    ("launcher up cluster.yaml --detach && launcher logs -f", "in the background"),
    ("launcher up cluster.yaml --json | tail -1 | jq .metrics", "for scripts"),
)


def up(
    command_line: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The spec.")] = Path("cluster.yaml"),
    *,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave it running in the background.")] = False,
    set_options: Set = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from the first step; the old run's data is renamed.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint although the spec has changed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take over another user's run without asking.")] = False,
    on: On = DEFAULT,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> int:
    """Run a spec, and follow it until it is done."""
    from launcher.cli.backends import check_backend, open_backend
    from launcher.cli.planning import plan_for_cluster
    from launcher.cli.resume import (
        ResumeFlags,
        changed,
        check_runs_directory,
        data_exists,
        decide_resume,
        describe_start,
        moved_spec_note,
        previous_status,
        rename_old_run,
        start_lock,
    )
    from launcher.cli.secrets import supply
    from launcher.spec.loader import dump

    if fresh and resume:
        raise UsageError("--fresh and --resume exclude each other", "leave out one of them")
    spec, plan, cluster = plan_for_cluster(file, set_options or [], check_backend(on), runs, ClusterRef(context, namespace))
    backend = open_backend(on, runs, cluster)
    may_prompt = not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    up_arguments = (str(file), *(word for option in set_options or [] for word in ("--set", option)))
    say = streams.printer(as_json=as_json)
    source = command_line.get_parameter_source("runs")
    uses_default = source is None or source.name == "DEFAULT"  # not for `--runs runs`
    if uses_default and BACKENDS[plan.target].stores_locally and (note := check_runs_directory(up_arguments, runs, spec.name, fresh=fresh)):
        say(f"notice: {note}")
    with ExitStack() as locks:
        # Held until the run has started, so that the decision below is still valid then.
        locks.enter_context(start_lock(runs, spec.name))
        old = previous_status(backend, spec.name)
        # A cluster stores the spec of each run; an engine has only its digest of a run that another machine started.
        elsewhere = BACKENDS[plan.target].shows_runs_of_others and not data_exists(runs_directory(runs, on), spec.name)
        run = PlannedRun(plan, dump(spec))
        changes, flags = changed(backend, spec, plan, runs), ResumeFlags(fresh, resume, may_prompt, yes)
        decision = decide_resume(old, changes, flags, runs, digest=plan.spec_digest, elsewhere=elsewhere)
        if decision == "complete" and old is not None:
            say(
                f"{spec.name} is complete{_steps_done(old)}; `{command(runs, 'up', *up_arguments, '--fresh', on=on)}` trains it again from the first step"
            )
            return _finish(backend, old, runs, (), as_json=as_json, code=0)
        webhook_notices = () if in_namespaces(on) else supply(plan, spec)
        if decision == "fresh" and (old is not None or (not in_namespaces(on) and data_exists(runs_directory(runs, on), spec.name))):
            # Another machine may be starting it, too: this keeps both from moving the other's run.
            locks.enter_context(_reserved(backend, run))
            moved_to = " and ".join(map(str, rename_old_run(backend, spec.name, old)))
            say(
                f"{spec.name} starts from the first step; {'the old run' if old else 'what was there'} is now {moved_to or 'gone, as it has no volume'}"
            )
        if decision == "resume" and old is not None:
            say(f"{spec.name} continues {describe_start(old, plan.run_dir)}{moved_spec_note(runs, plan)}")
        wait = command(runs, "wait", spec.name, on=on)
        for notice in (
            *plan.notices,
            *webhook_notices,
            *_prepared(backend, run),
            *(_background_notices(spec, on, wait, webhook_notices) if detach else ()),
        ):
            say(f"notice: {notice}")
        if detach:
            backend.start(run)
            return _detached(plan, runs, as_json=as_json)
        return _foreground(backend, run, runs, up_arguments, as_json=as_json, started=locks.close)


def _background_notices(spec: "ClusterSpec", on: str, wait: str, webhook_notices: Sequence[str]) -> Iterator[str]:
    """Yield notices about a run that no launcher watches. `wait` is the command that watches it; `webhook_notices` is not empty if its URL is missing."""
    if in_namespaces(on):
        yield from _unwatched_notices(spec, wait)
    if notify := spec.notify:
        channels = {"command": notify.command is not None, "webhook": notify.webhook is not None and not webhook_notices}
        yield from _message_notices([channel for channel, is_used in channels.items() if is_used], spec, on, wait)


def _unwatched_notices(spec: "ClusterSpec", wait: str) -> Iterator[str]:
    """Yield what is not done for a run on Kubernetes that no launcher watches; nothing if it has an attendant."""
    if spec.kubernetes.attendant is not None:
        return
    yield f"no launcher watches it: only `{wait}` replaces pods of lost nodes, and ends a run that fails or never starts; see kubernetes.attendant"
    if spec.kubernetes.ttl is not None:
        unknown = f"its result is lost unless a launcher reads it before that, or within the hour for which the cluster keeps events: `{wait}` records it"
        result = "its result is then read from its volume" if spec.train is not None else unknown
        yield f"kubernetes.ttl deletes the Jobs {spec.kubernetes.ttl} after their end; {result}"


def _message_notices(channels: list[str], spec: "ClusterSpec", on: str, wait: str) -> Iterator[str]:
    """Yield the sender of messages to people for each channel, or that there is none."""
    if not channels:
        return
    if not in_namespaces(on):
        yield f"its supervisor on this machine sends messages by {' and '.join(channels)}"
        return
    attended = ["webhook"] if "webhook" in channels and spec.kubernetes.attendant is not None else []
    rest = [channel for channel in channels if channel not in attended]
    by = ["its attendant sends messages by webhook"] if attended else []
    yield "; ".join([*by, *([f"no message is sent by {' or '.join(rest)} unless `{wait}` watches it"] if rest else [])])


def _reserved(backend: Backend, run: PlannedRun) -> AbstractContextManager[None]:
    return backend.reserve(run) if isinstance(backend, Reserves) else nullcontext()


def _prepared(backend: Backend, run: PlannedRun) -> Iterator[str]:
    return backend.prepare(run) if isinstance(backend, Prepares) else iter(())


def _steps_done(old: RunStatus) -> str:
    lost = f"; {old.data_lost.message}" if old.data_lost else ""
    return (f" at step {old.step:,}" if old.step is not None else "") + lost


def _detached(plan: Plan, runs: Path, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"event": "detached", "name": plan.name, "run_dir": plan.run_dir, "tasks": [task.name for task in plan.tasks]}))
    else:
        print(
            f"{plan.name} runs in the background; see `{command(runs, 'status', plan.name, on=plan.target)}`"
            f" and `{command(runs, 'logs', '-f', plan.name, on=plan.target)}`"
        )
    return 0


def _foreground(
    backend: Backend, run: PlannedRun, runs: Path, up_arguments: Sequence[str], *, as_json: bool, started: Callable[[], None]
) -> int:
    """Start a run, call `started`, follow the run until it has ended, and return the exit code."""
    from launcher.cli.follow import follow
    from launcher.cli.interrupts import Interrupts
    from launcher.cli.results import EXIT_CODES
    from launcher.cli.stopping import stop_action

    name, tasks = run.plan.name, [task.name for task in run.plan.tasks]
    with Interrupts() as interrupts:
        since, notices = time.time(), iter(["stopping the start"])  # printed once

        def is_cancelled() -> bool:
            if interrupts.count:
                streams.print_notices(notices)
            return bool(interrupts.count)

        with interrupts.errors_exit_as_interrupted():
            backend.start(run, is_cancelled=is_cancelled)
        started()
        with _view(name, tasks, as_json=as_json) as view:
            stop_description, logs = stop_action(run.spec), command(runs, "logs", name, on=run.plan.target)
            status = follow(backend, name, tasks, view, interrupts, since=since, stop_description=stop_description, logs_command=logs)
        if isinstance(backend, Reconciles):
            streams.print_notices(backend.finish(name))
    code = EXIT_CODES[status.state]
    if interrupts.first == signal.SIGINT and status.state is not State.SUCCEEDED:
        code = INTERRUPTED
    return _finish(backend, status, runs, up_arguments, as_json=as_json, code=code)


def _view(name: str, tasks: list[str], *, as_json: bool) -> "AbstractContextManager[View]":
    from launcher.cli.views import JsonView, PlainView

    if as_json:
        return JsonView()
    from rich.console import Console

    console = Console(highlight=False)
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        from launcher.cli.live import LiveView

        return LiveView(console, name, tasks)
    return PlainView(tasks)


def _finish(backend: Backend, status: RunStatus, runs: Path, up_arguments: Sequence[str], *, as_json: bool, code: int) -> int:
    """Show the summary, and return `code`. `up_arguments` is empty if nothing was run: then only --json has one."""
    from launcher.cli.results import show_summary, summary

    if as_json:
        print(json.dumps(summary(status, code)), flush=True)
    elif up_arguments:
        from rich.console import Console

        show_summary(Console(highlight=False), backend, status, runs, up_arguments)
    return code
