"""A run in the foreground on a terminal: a progress bar and a row for each task below, notable events scroll above."""

import time
from functools import partial
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from launcher import formats
from launcher.cli import measures, task_rows
from launcher.cli.output_lines import LAUNCHER_NOTE, is_noise, shown
from launcher.cli.prefixes import Prefixes
from launcher.cli.tables import fact_lines, grid
from launcher.cli.throttle import Throttle
from launcher.runs.status import LogLine, RunStatus, State
from trainer.events import Event, render

# Events whose content the display below shows do not scroll.
_SHOWN_BELOW = frozenset({"started", "ready", "progress", "checkpoint", "done"})
_STYLES = {"restarting": "yellow", "failed": "red", "stopping": "yellow", "waiting": "bright_black"}
_BAR = partial(ProgressBar, complete_style="cyan", finished_style="green")
# Lines of the terminal that stay free for scrolling.
_FREE_ROWS = 10


class LiveView:
    """Redraws from the last status and the last progress event."""

    def __init__(self, console: Console, name: str, tasks: list[str]) -> None:
        self._console = console
        self._name = name
        self._prefixes = Prefixes(tasks)
        self._throttle = Throttle()
        self._status: RunStatus | None = None
        self._progress: Event | None = None
        self._checkpoint: int | None = None
        self._headline = ""
        self._started = time.time()
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def event(self, event: Event) -> None:
        """Store progress for the display below; let the rest scroll above."""
        kind = event["event"]
        if kind == "progress" and "local_step" not in event:
            self._progress = event
        if kind == "checkpoint":
            self._checkpoint = event["step"]
        if kind not in _SHOWN_BELOW and self._throttle.admits(event):
            self._console.print(self._prefixes.line(event["task"], render(event), _STYLES.get(kind, "")), overflow="fold")  # wraps at words

    def output(self, line: LogLine) -> None:
        """Let a program's own output scroll, without noise."""
        if is_noise(line.text):
            return
        style = "yellow" if line.text.startswith(LAUNCHER_NOTE) else ""
        self._console.print(self._prefixes.line(line.task, shown(line), style), soft_wrap=True)

    def status(self, status: RunStatus) -> None:
        """Set the status to draw."""
        self._status = status

    def say(self, message: str) -> None:
        """Let the message scroll, and keep it in the display's first line."""
        self._headline = message.partition(":")[0]
        self._console.print(Text(message, style="bold yellow"))

    def _render(self) -> RenderableType:
        status = self._status
        if status is None:
            return Group(Text(), self._head(State.PENDING))
        tasks, left_out = task_rows.pick_rows(status, self._console.height - _FREE_ROWS)
        rows = [task_rows.row(task, self._prefixes, marked=True) for task in tasks]
        parts: list[RenderableType] = [Text(), self._head(status.state), self._bar(status)]
        parts += [Text(), grid(task_rows.HEADERS, rows, right=task_rows.RIGHT, unwrapped=task_rows.UNWRAPPED, width=self._console.width)]
        if left_out:
            parts.append(Text(f"and {formats.count(left_out, 'more task')}", style="bright_black"))
        return Group(*parts)

    def _head(self, state: State) -> RenderableType:
        activity = self._headline or ("starting" if state is State.PENDING else str(state))
        self._spinner.update(text=Text.assemble((self._name, "bold"), "  ", (activity, task_rows.MARKS[state][1])))
        return self._spinner

    def _bar(self, status: RunStatus) -> RenderableType:
        progress = self._progress or {}
        step, steps = progress.get("step", status.step), progress.get("steps", status.steps)
        elapsed = formats.duration(time.time() - self._started)
        if step is None or not steps:
            return Text(f"  {elapsed}", style="bright_black")
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(ratio=1, min_width=10)
        line.add_column(no_wrap=True)
        line.add_row(_BAR(total=steps, completed=min(step, steps)), Text(f"{100 * step / steps:3.0f} %"))
        return Group(line, self._facts(status, progress, f"{step:,}/{steps:,}", elapsed))

    def _facts(self, status: RunStatus, progress: Event, steps: str, elapsed: str) -> RenderableType:
        speed = progress.get("examples_per_second", status.examples_per_second)
        checkpoint = status.checkpoint_step if self._checkpoint is None else self._checkpoint
        facts: dict[str, str | None] = {"step": steps}
        facts |= {"": None if speed is None else f"{speed:,.0f} examples/s"}
        facts |= {"checkpoint": None if checkpoint is None else f"{checkpoint:,}", "elapsed": elapsed}
        facts |= {"left": None if status.eta is None else formats.duration(status.eta)}
        text = Text()
        for name, value in facts.items():
            if value is not None:
                text.append(f"{name} " if name else "", style="bright_black").append(f"{value}   ")
        text.rstrip()
        measured = {"training": _training_text(progress) or measures.training(status), "evaluation": measures.evaluation(status)}
        return Group(text, fact_lines([(name, value) for name, value in measured.items() if value]))


def _training_text(progress: Event) -> str:
    """Write the training loss and metrics of the last progress event."""
    loss = {"loss": progress["loss"]} if "loss" in progress else {}
    return formats.metrics({**loss, **(progress.get("metrics") or {})})
