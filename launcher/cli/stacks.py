"""`launcher stacks`: the current Python stacks of each task's threads."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.backend.model import Backend, ClusterRef
from launcher.cli.options import Context, Json, Name, Namespace, OnRun, Runs, complete_task_of_run
from launcher.cli.run_lookup import DEFAULT_RUNS, command
from launcher.errors import LauncherError, UsageError, check_tasks
from launcher.runs.status import ENDED
from trainer.stacks import ProcessStacks

EXAMPLES = (
    ("launcher stacks mnist", "every task"),
    ("launcher stacks mnist worker-1", "one task"),
    ("launcher stacks mnist --json | jq -r '.task + \": \" + .processes[].stacks'", "for scripts: a line a task"),
)
_CONCURRENT_TASKS = 8
_IMPORTING = '  File "<frozen importlib.'  # five frames for each module that is being imported


def stacks(
    name: Name = None,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="One task, e.g. worker-1; by default all.", autocompletion=complete_task_of_run, show_default=False
        ),
    ] = None,
    *,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Print the Python stacks of each task's threads."""
    from launcher.cli.backends import open_run

    backend, run = open_run(name, on, runs, ClusterRef(context, namespace))
    tasks = _running_tasks(backend, run, task, runs)
    failures: list[LauncherError] = []
    with ThreadPoolExecutor(min(_CONCURRENT_TASKS, len(tasks))) as pool:
        for task_name, answer in zip(tasks, pool.map(lambda name: _request(backend, run, name), tasks), strict=True):
            if isinstance(answer, LauncherError):
                failures.append(answer)
            _show(task_name, answer, as_json=as_json)
    if len(failures) == len(tasks):
        raise LauncherError(f"no task of {run} returned its stacks", failures[0].remedy)


def _running_tasks(backend: Backend, run: str, task: str | None, runs: Path) -> list[str]:
    """Return the tasks that run, or only `task`. Raises UsageError if it does not exist, or none runs."""
    status = backend.status(run)
    states = {one.name: one.state for one in status.tasks}
    if task is not None:
        check_tasks(run, [task], list(states))
    running = [name for name, state in states.items() if state not in ENDED and task in {None, name}]
    if not running:
        state = states[task] if task else status.state
        raise UsageError(
            f"{task or run} does not run: it is {state}", f"see what it wrote: `{command(runs, 'logs', run, on=status.backend)}`"
        )
    return running


def _request(backend: Backend, run: str, task: str) -> tuple[ProcessStacks, ...] | LauncherError:
    try:
        return backend.stacks(run, task)
    except LauncherError as error:
        return error


def _show(task: str, answer: tuple[ProcessStacks, ...] | LauncherError, *, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {"task": task, "processes": [], "problem": ""}
        document |= {"problem": answer.message} if isinstance(answer, LauncherError) else {"processes": [asdict(one) for one in answer]}
        print(json.dumps(document), flush=True)
        return
    print("\n".join(_lines(task, answer)), end="\n\n", flush=True)


def _lines(task: str, answer: tuple[ProcessStacks, ...] | LauncherError) -> Iterator[str]:
    if isinstance(answer, LauncherError):
        yield f"{answer.message}. {answer.remedy}"
    elif not answer:
        yield f"{task}: no Python process in it can return its stacks; one started with -I, -E or -S never can"
    else:
        for process in answer:
            yield f"{task}  process {process.pid}  {process.command}".rstrip()
            lines = (process.problem or process.stacks.rstrip()).splitlines()
            yield from (f"  {line}".rstrip() for line in lines if not line.startswith(_IMPORTING))
