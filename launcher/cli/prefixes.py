"""The coloured `worker-0 | ` before a task's line, aligned as Docker Compose does it."""

from collections.abc import Iterable

from rich.text import Text

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green", "bright_magenta", "bright_blue")


class Prefixes:
    """Gives each task a colour, by its position, and all prefixes the same width."""

    def __init__(self, tasks: Iterable[str]) -> None:
        self._colour = {task: COLOURS[position % len(COLOURS)] for position, task in enumerate(tasks)}
        self._width = max(map(len, self._colour), default=0)

    def colour(self, task: str) -> str:
        """Return the colour of a task; one that is not of the run has the default colour."""
        return self._colour.get(task, "default")

    def plain(self, task: str) -> str:
        """Return the prefix as plain text."""
        return f"{task:<{self._width}} | "

    def line(self, task: str, text: str, style: str = "") -> Text:
        """Return a whole line for a terminal. It keeps colours that the task's program set, but no cursor movements."""
        prefix = Text(self.plain(task), style=self.colour(task))
        return prefix.append_text(Text(text, style=style) if style else Text.from_ansi(text))
