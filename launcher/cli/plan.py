"""`launcher plan`: the plan that a spec becomes, before anything is started."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from launcher.backend.registry import DEFAULT
from launcher.cli.options import Json, On, Runs, Set, SpecFile, complete_task
from launcher.cli.run_lookup import DEFAULT_RUNS, relative_path
from launcher.errors import check_tasks
from launcher.files import json_object
from launcher.formats import binary_size
from launcher.plan import role_rules
from launcher.plan.models import Plan, Task
from launcher.plan.plan_json import to_document

EXAMPLES = (
    ("launcher plan cluster.yaml", "a table of the tasks"),
    ("launcher plan cluster.yaml --task worker-1", "one task's TF_CONFIG and environment"),
    ("launcher plan cluster.yaml --on kubernetes", "the same tasks as pods, with their names there"),
    ("launcher plan cluster.yaml --json | jq .tasks[0].tf_config", "for scripts"),
)
_HEADERS = ("TASK", "ROLE", "ADDRESS", "CPU", "MEMORY", "GPUS", "RESTARTS", "COMMAND")


def plan(
    file: SpecFile,
    *,
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="Show only this task, in full.", autocompletion=complete_task, show_default=False)
    ] = None,
    set_options: Set = None,
    on: On = DEFAULT,
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Show a spec's plan: tasks, addresses, resources, TF_CONFIG."""
    from launcher.cli.backends import check_backend
    from launcher.plan.spec_file import plan_file

    _, planned = plan_file(file, set_options or [], check_backend(on), runs)
    if task is not None:
        _show_task(_find(planned, task), as_json=as_json)
    elif as_json:
        print(json.dumps(to_document(planned), indent=2))
    else:
        _show(planned)


def _find(planned: Plan, name: str) -> Task:
    by_name = {task.name: task for task in planned.tasks}
    check_tasks(planned.name, [name], list(by_name))
    return by_name[name]


def _show(planned: Plan) -> None:
    from rich.console import Console

    from launcher.cli.tables import Cell, show

    rows: list[tuple[Cell, ...]] = []
    for task in planned.tasks:
        size = task.resources
        rows.append(
            (
                task.name,
                task.role,
                task.address,
                "" if size.cpu is None else f"{size.cpu:g}",
                "" if size.memory is None else binary_size(size.memory),
                f"{size.gpus} x {size.gpu_type}" if size.gpu_type else str(size.gpus or ""),
                f"{task.restart.scope}, at most {task.restart.max_restarts}",
                " ".join(map(_one_line, role_rules.readable_command(task.command))),
            )
        )
    console = Console(highlight=False)
    show(console, _HEADERS, rows, right=("CPU", "MEMORY", "GPUS"))
    console.print(
        f"\n{planned.name}: {planned.strategy}, {f'run directory {relative_path(planned.run_dir)}' if planned.run_dir else 'no run directory'}",
        soft_wrap=True,
        markup=False,
    )
    for notice in planned.notices:
        console.print(f"notice: {notice}", soft_wrap=True, markup=False)


def _one_line(word: str) -> str:
    """Return a word of a command for a table: of a script the first line and the number of lines; `--task` shows all."""
    first, *more = word.strip().splitlines() or [""]
    return f"'{first} ...' ({len(more) + 1} lines)" if more else word


def _show_task(task: Task, *, as_json: bool) -> None:
    shown = asdict(task)
    if not as_json:
        # The settings are JSON in a string; as an object they are readable.
        shown["env"] = {name: _decoded(value) for name, value in task.env.items()}
    text = json.dumps(shown, indent=2)
    if as_json:
        print(text)
    else:
        from rich.console import Console

        console = Console()
        if console.is_terminal:
            console.print_json(text)
        else:
            print(text)


def _decoded(value: str) -> object:
    content = json_object(value)
    return value if content is None else content
