"""`launcher logs`: the output of the tasks."""

import json
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import typer

from launcher import formats
from launcher.backend.model import ClusterRef
from launcher.cli import output_lines
from launcher.cli.options import Context, Json, Name, Namespace, OnRun, Runs, complete_index, complete_role
from launcher.cli.run_lookup import DEFAULT_RUNS
from launcher.errors import UsageError
from launcher.plan import role_rules
from launcher.runs.status import LogLine, TaskStatus
from trainer.events import render

EXAMPLES = (
    ("launcher logs", "all output of the only run"),
    ("launcher logs -f mnist", "and new output, until it has ended"),
    ("launcher logs mnist --role worker --index 0 --since 10m", "one task, the last ten minutes"),
    ("launcher logs mnist --role ps --tail 20", "the last lines"),
    ("launcher logs mnist --grep 'error|restart'", "lines with one of the words"),
)
# The number of a task's last lines that are searched for lines about the selected tasks.
_LINES_SEARCHED = 2000


def logs(
    name: Name = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new output until the run has ended.")] = False,
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="Only tasks of this role; may be given more than once.",
            autocompletion=complete_role,
            metavar="|".join(role_rules.ROLE_ORDER),
        ),
    ] = None,
    index: Annotated[
        list[int] | None, typer.Option(help="Only tasks of this index; may be given more than once.", autocompletion=complete_index, min=0)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only newer lines: 10m for the last ten minutes, or e.g. 2026-01-31T12:00:00Z.", show_default=False
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            help="Show only this number of each task's last lines, after --role, --index and --grep are applied.",
            min=0,
            show_default=False,
        ),
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only lines that match this regular expression.", show_default=False)
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Begin each line with its time.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Show the output unchanged: progress events, progress bars, any bytes.")] = False,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Show the tasks' output."""
    from launcher.cli.backends import open_run

    since_time = formats.parse_since(since) if since is not None else None
    tail = None if tail is None else min(tail, sys.maxsize)  # more than a deque, an engine or a cluster can count
    backend, run = open_run(name, on, runs, ClusterRef(context, namespace))
    all_tasks = backend.status(run).tasks
    tasks = _select_tasks(run, all_tasks, role or [], index or [])
    write = (lambda line: _json(line, raw=raw)) if as_json else _writer(tasks, timestamps=timestamps, raw=raw)
    matches = _line_filter(grep, raw=raw)
    if len(tasks) == len(all_tasks) and grep is None:
        for line in backend.logs(run, tasks=tasks, follow=follow, since=since_time, tail=tail):
            write(line)
        return
    # The leader also reports for others: of workers on parameter servers, only it does.
    sources = list(dict.fromkeys([role_rules.leader(task.name for task in all_tasks), *tasks]))
    position = Position()
    if tail is not None:
        searched = None if grep else max(_LINES_SEARCHED, tail)
        stored = position.note(backend.logs(run, tasks=sources, follow=False, since=since_time, tail=searched))
        for line in _last(filter(matches, stored), tasks, tail):
            write(line)
        if not follow:
            return
    for line in position.after(backend.logs(run, tasks=sources, follow=follow, since=position.since(sources, since_time), tail=None)):
        if _task_of(line) in tasks and matches(line):
            write(line)


class Position:
    """The position up to which each task's output was read. The clocks of tasks differ, so each task has its own."""

    def __init__(self) -> None:
        """Start before the first line of every task."""
        self._last: dict[str, tuple[float, int]] = {}  # task -> the time of its last line, and how many lines have that time

    def note(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the lines, and note each."""
        for line in lines:
            time, count = self._last.get(line.task, (line.time, 0))
            if line.time >= time:
                self._last[line.task] = (line.time, count + 1 if line.time == time else 1)
            yield line

    def since(self, tasks: Iterable[str], earliest: float | None) -> float | None:
        """Return the time from which to read so that no new line of `tasks` is missed; `earliest` if one has no line yet."""
        times = [self._last[task][0] if task in self._last else None for task in tasks]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else earliest

    def after(self, lines: Iterable[LogLine]) -> Iterator[LogLine]:
        """Yield the lines without those that were noted."""
        left = {task: count for task, (_, count) in self._last.items()}
        for line in lines:
            time, _ = self._last.get(line.task, (-math.inf, 0))
            if line.time == time and left[line.task]:
                left[line.task] -= 1
            elif line.time >= time:
                yield line


def _line_filter(pattern: str | None, *, raw: bool) -> Callable[[LogLine], bool]:
    """Return the predicate that searches lines, as they are shown, for `pattern`. Raises UsageError for a wrong regular expression."""
    try:
        expression = re.compile(pattern or "")
    except re.error as error:
        raise UsageError(
            f"--grep: {pattern!r} is not a regular expression: {error}", "put a backslash before characters such as ( [ * + ?"
        ) from None

    def matches(line: LogLine) -> bool:
        if raw:
            return expression.search(output_lines.raw(line).decode("utf-8", "replace")) is not None
        event = output_lines.event_in(line.text) if pattern else None
        return expression.search(render(event) if event else output_lines.shown(line)) is not None

    return matches


def _task_of(line: LogLine) -> str:
    """Return the task that a line is about: that of its event, else the one that wrote it."""
    event = output_lines.event_in(line.text)
    return event["task"] if event else line.task


def _last(lines: Iterable[LogLine], tasks: list[str], count: int) -> list[LogLine]:
    """Return the last lines about each of `tasks`, in order of time."""
    newest = {task: deque[LogLine](maxlen=count) for task in tasks}
    for line in lines:
        if (task := _task_of(line)) in newest:
            newest[task].append(line)
    return sorted((line for selected in newest.values() for line in selected), key=lambda line: line.time)


def _select_tasks(run: str, tasks: tuple[TaskStatus, ...], roles: list[str], indices: list[int]) -> list[str]:
    selected = []
    for task in tasks:
        role, index = role_rules.role_and_index(task.name)
        if (not roles or role in roles) and (not indices or (index or 0) in indices):
            selected.append(task.name)
    if not tasks:
        raise UsageError(
            f"the tasks of {run} are no longer known",
            "its output here was removed, or its pods are gone and no launcher on this machine has followed it",
        )
    if not selected:
        raise UsageError(f"{run} has no such task", f"its tasks are: {', '.join(task.name for task in tasks)}")
    return selected


def _json(line: LogLine, *, raw: bool) -> None:
    event = output_lines.event_in(line.text)
    text = output_lines.raw(line).decode("utf-8", "replace") if raw else output_lines.shown(line)
    print(json.dumps({"time": line.time, "task": line.task, "text": text} | ({"event": event} if event else {})), flush=True)


def _writer(tasks: list[str], *, timestamps: bool, raw: bool) -> Callable[[LogLine], None]:
    from rich.console import Console

    from launcher.cli.prefixes import Prefixes
    from launcher.timestamps import rfc3339

    console = Console(highlight=False)
    prefixes = Prefixes(tasks)

    def write(line: LogLine) -> None:
        event = None if raw else output_lines.event_in(line.text)
        # The chief reports for the workers of parameter_server; the prefix is that of the worker.
        task = event["task"] if event else line.task
        time = f"{rfc3339(line.time)} " if timestamps else ""
        if raw:
            # As bytes, since stdout's encoding may reject some.
            sys.stdout.flush()
            sys.stdout.buffer.write((prefixes.plain(task) + time).encode() + output_lines.raw(line) + b"\n")
            sys.stdout.buffer.flush()
            return
        text = time + (render(event) if event else output_lines.shown(line))
        if console.is_terminal:
            console.print(prefixes.line(task, text), soft_wrap=True)
        else:
            print(prefixes.plain(task) + text, flush=True)

    return write
