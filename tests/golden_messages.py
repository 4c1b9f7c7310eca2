"""Golden files of messages as users read them: one file a package, tests/<package>/messages.txt, which `make golden` writes.

A test with the fixture `golden` passes it each message, and the fixture compares it with the file. The test itself checks codes, source locations
and values, so that a reworded message changes only the file. These tests neither import TensorFlow nor wait for whole runs.
`make golden` runs them and writes the files again: read the difference before you commit it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

TESTS = Path(__file__).parent
PACKAGES = ("launcher", "trainer")
HEAD = "Messages as users read them, by the test whose input makes them. `make golden` writes this file.\n"


class Golden(Protocol):
    """Compares messages with those in the package's file. A value of `hidden`, which differs from run to run, is replaced by its name."""

    def __call__(self, *messages: str, **hidden: object) -> None:
        """Compare the test's next messages. Raises AssertionError if one differs from the file."""


class GoldenMessages:
    """The plugin: the messages of each test in the files, and with `write` those that the tests have produced."""

    def __init__(self, *, write: bool) -> None:
        """Compare, or with `write` collect and write."""
        self._write = write
        self._actual: dict[Path, dict[str, list[str]]] = {path_of(TESTS / package): {} for package in PACKAGES}
        self._expected = {path: read(path.read_text(encoding="utf-8") if path.exists() else "") for path in self._actual}
        self._tests: dict[Path, set[str]] = {path: set() for path in self._actual}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """With `write` run only the tests with messages."""
        if self._write:
            others = [item for item in items if "golden" not in getattr(item, "fixturenames", ())]
            items[:] = [item for item in items if item not in others]
            config.hook.pytest_deselected(items=others)
            for item in items:
                self._tests[path_of(item.path)].add(name_of(item))

    @pytest.fixture
    def golden(self, request: pytest.FixtureRequest) -> Iterator[Golden]:
        """Return the function that compares a test's messages."""
        path, name = path_of(request.path), name_of(request.node)
        actual: list[str] = []
        expected, failed = self._expected[path].get(name, []), request.session.testsfailed
        directory = {"tmp": request.getfixturevalue("tmp_path")} if "tmp_path" in request.fixturenames else {}

        def check(*messages: str, **hidden: object) -> None:
            for message in messages:
                actual.append(masked(message, {**hidden, **directory}))
                if not self._write:
                    assert actual == expected[: len(actual)], f"{path.name} differs for {name}; if this is intended, run `make golden`"

        yield check
        if self._write:
            self._actual[path][name] = actual
        elif request.session.testsfailed == failed:
            assert actual == expected, f"{path.name} has more messages for {name}; if this is intended, run `make golden`"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the files, unless a test has failed; messages of tests that were skipped here stay as they are."""
        for path, actual in self._actual.items() if self._write and exitstatus == 0 else ():
            unchanged = {name: messages for name, messages in self._expected[path].items() if name in self._tests[path]}
            path.write_text(text_of({**unchanged, **actual}), encoding="utf-8")


def path_of(test: Path) -> Path:
    """Return the file with the messages of a test, or of a package's tests."""
    return TESTS / test.relative_to(TESTS).parts[0] / "messages.txt"


def name_of(item: pytest.Item) -> str:
    """Return the name of a test in that file: its path below the package's tests, and its own name."""
    return f"{item.path.relative_to(path_of(item.path).parent)}::{item.name}"


def masked(message: str, hidden: dict[str, object]) -> str:
    """Return a message in which the names of values replace them."""
    for name, value in hidden.items():
        message = message.replace(str(value), f"<{name}>")
    return message


def text_of(messages: dict[str, list[str]]) -> str:
    """Return the text of a file: for each test a line with its name, then its messages, whose further lines are indented."""
    tests = (
        "\n".join([name, *("- " + text.replace("\n", "\n  ") for text in texts)]) + "\n"
        for name, texts in sorted(messages.items())
        if texts
    )
    return "\n".join([HEAD, *tests])


def read(text: str) -> dict[str, list[str]]:
    """Return the messages of each test in a file; the inverse of `text_of`."""
    messages: dict[str, list[str]] = {}
    for block in text.removeprefix(HEAD).strip("\n").split("\n\n"):
        name, *indented = block.split("\n- ")
        messages[name] = [one.replace("\n  ", "\n") for one in indented]
    return messages


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    modules = [str(path) for package in PACKAGES for path in sorted((TESTS / package).rglob("test_*.py")) if "Golden" in path.read_text()]
    sys.exit(pytest.main(["--write-messages", "-qq", "-p", "no:cacheprovider", *modules]))
