"""A parser of BuildKit's plain progress: steps, their output, and how long they took.

Lines are `#N [stage 2/3] RUN ...`, `#N 1.234 output`, `#N CACHED`, `#N DONE 1.2s`, `#N ERROR: ...`, and after a failure
the failed step's last lines again.
"""

import re
from collections import deque
from dataclasses import dataclass, field

_LINE = re.compile(r"#(\d+) (.*)")
_OUTPUT = re.compile(r"\d+\.\d+ (.*)")
_DONE = re.compile(r"DONE (\d+\.\d+)s")
_LAST_LINES = 15  # last lines of the build that an error shows

# Pattern of the start of BuildKit's title of a step of images/Dockerfile -> our title. Other steps are not reported.
_TITLES = (
    (r"\[internal\] load metadata", "looking for the base image"),
    (r"\[(?:install-cpu|install-gpu) .* RUN", "installing TensorFlow and its dependencies"),
    (r"\[install(?:-cpu|-gpu)? 1/", "fetching the base image"),
    (r"\[program .* RUN", "compiling the trainer"),
    (r"\[(?:cpu|gpu) .* COPY .*/opt/venv", "copying TensorFlow without unneeded files"),
    (r"\[.* COPY .* /code", "copying your code"),
    (r"exporting to image", "writing the image"),
)


@dataclass(frozen=True)
class Step:
    """A reported step. `seconds` is None while it runs."""

    title: str
    seconds: float | None = None


@dataclass(frozen=True)
class Output:
    """A line that a step wrote."""

    title: str
    text: str


@dataclass
class ProgressParser:
    """Reads the lines one by one. `last` holds the last lines of output, for an error."""

    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    _titles: dict[str, str] = field(default_factory=dict)

    def read(self, line: str) -> Step | Output | None:
        """Return a step that has started or is done, or a line of its output; None for a line that is not reported."""
        line = line.rstrip()
        numbered = _LINE.match(line)
        if numbered is None:
            self._keep(line)
            return None
        number, rest = numbered.groups()
        if output := _OUTPUT.match(rest):
            self._keep(output[1])
            title = self._titles.get(number)
            return Output(title, output[1]) if title else None
        if done := _DONE.fullmatch(rest):
            title = self._titles.pop(number, "")
            return Step(title, float(done[1])) if title else None
        if rest == "CACHED":
            self._titles.pop(number, None)
            return None
        if rest.startswith("ERROR: "):
            self._keep(rest)
            return None
        return self._started(number, rest)

    def _started(self, number: str, rest: str) -> Step | None:
        title = next((title for pattern, title in _TITLES if re.match(pattern, rest)), "")
        if not title or self._titles.get(number) == title:
            return None
        self._titles[number] = title
        return Step(title)

    def _keep(self, line: str) -> None:
        if line.strip() and not set(line) <= {"-"} and line not in self.last:
            self.last.append(line)
