"""Messages that tests compare as users read them: one file a package, tests/<package>/messages.txt, which `make golden` writes.

A test that asks for the fixture `golden` gives it each message that its real input makes: the message has to be the one in the file. Codes,
places and values stay in the test, so that another wording changes one file. These tests neither import TensorFlow nor wait for whole runs.
`make golden` runs those tests and writes the files again: read the difference before you commit it.
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
    """Compares messages with those in the package's file; of `hidden`, values that differ from run to run, the names are written."""

    def __call__(self, *messages: str, **hidden: object) -> None:
        """Take the test's next messages. Raises AssertionError where one is not the one in the file."""


class GoldenMessages:
    """The plugin: the messages of each test, as they are in the files, and with `write` as tests have made them."""

    def __init__(self, *, write: bool) -> None:
        """Compare, or with `write` collect and write."""
        self._write = write
        self._made: dict[Path, dict[str, list[str]]] = {path_of(TESTS / package): {} for package in PACKAGES}
        self._expected = {path: read(path.read_text(encoding="utf-8") if path.exists() else "") for path in self._made}
        self._tests: dict[Path, set[str]] = {path: set() for path in self._made}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """With `write` run the tests with messages alone."""
        if self._write:
            others = [item for item in items if "golden" not in getattr(item, "fixturenames", ())]
            items[:] = [item for item in items if item not in others]
            config.hook.pytest_deselected(items=others)
            for item in items:
                self._tests[path_of(item.path)].add(name_of(item))

    @pytest.fixture
    def golden(self, request: pytest.FixtureRequest) -> Iterator[Golden]:
        """Return what a test gives its messages to."""
        path, name = path_of(request.path), name_of(request.node)
        made: list[str] = []
        expected, failed = self._expected[path].get(name, []), request.session.testsfailed
        here = {"tmp": request.getfixturevalue("tmp_path")} if "tmp_path" in request.fixturenames else {}

        def check(*messages: str, **hidden: object) -> None:
            for message in messages:
                made.append(without(message, {**hidden, **here}))
                if not self._write:
                    assert made == expected[: len(made)], f"`make golden` writes what {path.name} has of {name}, if this is meant"

        yield check
        if self._write:
            self._made[path][name] = made
        elif request.session.testsfailed == failed:
            assert made == expected, f"{path.name} has more of {name}; `make golden` writes it"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the files, unless a test has failed; what tests that were skipped here say stays as it is."""
        for path, made in self._made.items() if self._write and exitstatus == 0 else ():
            kept = {name: messages for name, messages in self._expected[path].items() if name in self._tests[path]}
            path.write_text(text_of({**kept, **made}), encoding="utf-8")


def path_of(test: Path) -> Path:
    """Return the file with the messages of a test, or of a package's tests."""
    return TESTS / test.relative_to(TESTS).parts[0] / "messages.txt"


def name_of(item: pytest.Item) -> str:
    """Return what a test is called in that file: where it is below the package's tests, and its name."""
    return f"{item.path.relative_to(path_of(item.path).parent)}::{item.name}"


def without(message: str, hidden: dict[str, object]) -> str:
    """Return a message with the names of values in their place."""
    for name, value in hidden.items():
        message = message.replace(str(value), f"<{name}>")
    return message


def text_of(messages: dict[str, list[str]]) -> str:
    """Return the text of a file: of each test a line with its name, then its messages, further lines of one indented below its first."""
    tests = (
        "\n".join([name, *("- " + one.replace("\n", "\n  ") for one in said)]) + "\n" for name, said in sorted(messages.items()) if said
    )
    return "\n".join([HEAD, *tests])


def read(text: str) -> dict[str, list[str]]:
    """Return the messages of each test in a file; the inverse of `text_of`."""
    found: dict[str, list[str]] = {}
    for block in text.removeprefix(HEAD).strip("\n").split("\n\n"):
        name, *said = block.split("\n- ")
        found[name] = [one.replace("\n  ", "\n") for one in said]
    return found


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    asking = [str(path) for package in PACKAGES for path in sorted((TESTS / package).rglob("test_*.py")) if "Golden" in path.read_text()]
    sys.exit(pytest.main(["--write-messages", "-qq", "-p", "no:cacheprovider", *asking]))
