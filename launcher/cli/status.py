"""`launcher status`: the state of a run and of each of its tasks."""

import json
import time
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from launcher import formats
from launcher.backend.model import Backend, ClusterRef
from launcher.cli import measures, task_rows
from launcher.cli.options import Context, Json, Name, Namespace, OnRun, Runs
from launcher.cli.prefixes import Prefixes
from launcher.cli.run_lookup import DEFAULT_RUNS, relative_path
from launcher.cli.tables import fact_lines, grid, plain
from launcher.runs.stalled_tasks import stall_summary
from launcher.runs.status import ENDED, RunStatus
from trainer.events import finite

EXAMPLES = (
    ("launcher status", "the only run"),
    ("launcher status mnist --watch", "again every second, until it has ended"),
    ("launcher status mnist --json | jq -r '.tasks[] | select(.restarts != []) | .name'", "the tasks that were restarted"),
)
WATCH_INTERVAL = 1.0
UNATTENDED = "none; only a watching launcher (`up`, `wait`) replaces pods of lost nodes, and ends a run that fails or never starts"


def status(
    name: Name = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Repeat every second, in a pipe on each change, until the run has ended.")
    ] = False,
    on: OnRun = None,
    context: Context = None,
    namespace: Namespace = None,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Show the state of a run and of each task."""
    from launcher.cli.backends import open_run

    backend, run = open_run(name, on, runs, ClusterRef(context, namespace))
    console = Console(highlight=False)
    if watch and console.is_terminal and not as_json:
        _watch(backend, run, console)
        return
    shown: RunStatus | None = None
    while shown is None or (watch and shown.state not in ENDED):
        if shown is not None:
            time.sleep(WATCH_INTERVAL)
        current = backend.status(run)
        if shown is None or not is_same(current, shown):
            _print(console, current, as_json=as_json)
        shown = current


def is_same(one: RunStatus, other: RunStatus) -> bool:
    """Return whether two statuses are the same, even with a loss of nan, which does not equal itself."""
    return bool(finite(asdict(one)) == finite(asdict(other)))


def _watch(backend: Backend, run: str, console: Console) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            current = backend.status(run)
            live.update(_rendered(current, console.width, console.height), refresh=True)
            if current.state in ENDED:
                return
            time.sleep(WATCH_INTERVAL)


def _print(console: Console, current: RunStatus, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(formats.document(current)), flush=True)
    elif console.is_terminal:
        console.print(_rendered(current, console.width, None))
    else:
        width = max(len(fact) for fact, _ in _facts(current))
        print("\n".join(f"{fact:<{width}}  {value}" for fact, value in _facts(current)))
        rows = [task_rows.row(task, Prefixes([]), marked=False) for task in _without_repeated_reason(current).tasks]
        print("\n" + plain(task_rows.HEADERS, rows, right=task_rows.RIGHT) + "\n", flush=True)


def _rendered(current: RunStatus, width: int, height: int | None) -> RenderableType:
    facts = _facts(current)
    parts: list[RenderableType] = [fact_lines(facts, {"state": f"bold {task_rows.MARKS[current.state][1]}"})]
    max_rows = len(current.tasks) if height is None else height - len(facts) - 4
    shown, left_out = task_rows.pick_rows(_without_repeated_reason(current), max_rows)
    prefixes = Prefixes(task.name for task in current.tasks)
    rows = [task_rows.row(task, prefixes, marked=True) for task in shown]
    parts += [Text(), grid(task_rows.HEADERS, rows, right=task_rows.RIGHT, unwrapped=task_rows.UNWRAPPED, width=width)]
    if left_out:
        parts.append(Text(f"and {formats.count(left_out, 'more task')}", style="bright_black"))
    return Group(*parts)


def _without_repeated_reason(current: RunStatus) -> RunStatus:
    """Return a status with `as above` for the reason of the task whose reason is also the run's."""
    tasks = (replace(task, reason="as above") if task.name == current.reason_task else task for task in current.tasks)
    return replace(current, tasks=tuple(tasks))


def _facts(current: RunStatus) -> list[tuple[str, str]]:
    facts = {
        "run": f"{current.name} on {current.backend}" + (f", {current.strategy}" if current.strategy else ""),
        "state": ": ".join(filter(None, (str(current.state), current.reason or _early(current)))),
        "started": " by ".join(filter(None, (_times(current), current.user))),
        "stalled": "" if current.state in ENDED else stall_summary(current),
        "saving": measures.save_failure(current, time.time()),
        "step": measures.steps(current),
        "training": measures.training(current),
        "evaluation": measures.evaluation(current),
        "speed": measures.speed(current),
        "time left": "" if current.eta is None or current.state in ENDED else formats.duration(current.eta),
        "checkpoint": _checkpoint(current),
        "model": "" if current.model is None else relative_path(current.model),
        "run directory": relative_path(str(current.run_dir or "")),
        "data": current.data_lost.message if current.data_lost else "",
        "notified": "; ".join(current.notified),
        "attendant": "" if current.attended else UNATTENDED,
    }
    return [(fact, value) for fact, value in facts.items() if value]


def _early(current: RunStatus) -> str:
    why = measures.early_end(current)
    return f"stopped early {why}" if why else ""


def _times(current: RunStatus) -> str:
    if current.started is None:
        return ""
    took = "" if current.ended is None else f", took {formats.duration(current.ended - current.started)}"
    return formats.ago(current.started) + took


def _checkpoint(current: RunStatus) -> str:
    if current.checkpoint is None:
        return ""
    path = relative_path(current.checkpoint)
    return path if current.checkpoint_step is None else f"step {current.checkpoint_step:,}: {path}"
