"""A run in the foreground without a terminal: plain lines for people, JSON lines for programs."""

import json
import sys
from types import TracebackType
from typing import Self

from launcher.cli.output_lines import is_noise, shown
from launcher.cli.prefixes import Prefixes
from launcher.cli.throttle import Throttle
from launcher.runs.status import LogLine, RunStatus
from trainer.events import Event, render


class PlainView:
    """One plain line an event, after the task's name; progress about once a second at most."""

    def __init__(self, tasks: list[str]) -> None:
        self._prefixes = Prefixes(tasks)
        self._throttle = Throttle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def event(self, event: Event) -> None:
        """Print the event's readable line."""
        if self._throttle.admits(event):
            self._print(event["task"], render(event))

    def output(self, line: LogLine) -> None:
        """Print the line as the program wrote it, unless it is noise."""
        if not is_noise(line.text):
            self._print(line.task, shown(line))

    def status(self, status: RunStatus) -> None:
        """Print nothing: all changes come as events."""

    def say(self, message: str) -> None:
        """Print a line of the launcher's own."""
        print(message, flush=True)

    def _print(self, task: str, text: str) -> None:
        print(self._prefixes.plain(task) + text, flush=True)


class JsonView:
    """Every event unchanged, one JSON object per line; other output as events named `output`. The launcher's own lines go to stderr."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def event(self, event: Event) -> None:
        """Print the event."""
        print(json.dumps(event), flush=True)

    def output(self, line: LogLine) -> None:
        """Print the line as an event."""
        self.event({"event": "output", "time": line.time, "task": line.task, "text": shown(line)})

    def status(self, status: RunStatus) -> None:
        """Print nothing: the summary at the end has it."""

    def say(self, message: str) -> None:
        """Write to stderr, as stdout is for a program."""
        print(message, file=sys.stderr, flush=True)
