"""Options and fixtures of all tests: a clean environment, forked test processes, the path of the real MNIST."""

import ctypes
import gc
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import forked
from tests.costs import Costs
from tests.golden_messages import GoldenMessages

# With PYTHONDONTWRITEBYTECODE each of thousands of processes would compile every module again, and pytest would rewrite each test file.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Hypothesis's limit of 0.2 s for each example would fail tests by chance on a busy machine. Its profile for CI has no limit anyway.
hypothesis.settings.register_profile("tests", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("tests")

# Marks whose tests are all in one directory. `-m MARK` then imports no other test, and so no TensorFlow.
MARK_DIRECTORIES = {mark: Path(__file__).parent / "e2e" / mark for mark in ("docker", "kubernetes")}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without a test that `-m` selects, so that they are not imported.

    Few modules have a slow test; to import all others takes ten seconds.
    """
    expression: str = config.getoption("markexpr")
    directory = MARK_DIRECTORIES.get(expression)
    if directory is not None:
        return None if collection_path.is_relative_to(directory) or directory.is_relative_to(collection_path) else True
    terms = re.split(r"\s+and\s+", expression)
    if any(f"not {mark}" in terms and collection_path.is_relative_to(path) for mark, path in MARK_DIRECTORIES.items()):
        return True
    module = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
    return True if "slow" in terms and module and "mark.slow" not in collection_path.read_text(encoding="utf-8") else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--costs=FILE`, which writes the cost of each test, and `--write-messages`, which writes the messages that tests compare."""
    parser.addoption(
        "--costs",
        metavar="FILE",
        type=Path,
        help="write processor seconds and seconds to FILE, and print the most costly modules and tests",
    )
    parser.addoption("--write-messages", action="store_true", help="write tests/*/messages.txt again, as `make golden` does")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins, and handle signals. A shell's `&` and nohup let them be ignored, by this process and by all that it starts."""
    if hasattr(config, "workerinput"):
        forked.shared.directory = config.workerinput["forked"]
    elif not forked.shared.directory:
        forked.shared.create()
    config.pluginmanager.register(GoldenMessages(write=config.getoption("write_messages")))
    if config.getoption("costs") and not config.getoption("collectonly"):
        config.pluginmanager.register(Costs())
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the test processes from one that has collected the tests."""
    invocation = config.invocation_params
    arguments = {"arguments": [str(argument) for argument in invocation.args], "directory": str(invocation.dir)}
    Path(forked.shared.directory, forked.PYTEST_ARGUMENTS).write_text(json.dumps(arguments), encoding="utf-8")
    for spec in specs:
        spec.python = shlex.join([sys.executable, str(Path(__file__).with_name("worker.py")), forked.shared.directory])
    if config.args_source is not pytest.Config.ArgsSource.ARGS and not config.getoption("keyword"):
        # All tests are selected, and collecting them leaves a core idle for ten seconds: the fork server imports TensorFlow meanwhile.
        threading.Thread(target=forked.shared.prepare, args=(forked.TENSORFLOW,), daemon=True).start()


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_configure_node(node: Any) -> None:
    """Let all test processes share the fork servers, so that TensorFlow is imported only once."""
    node.workerinput["forked"] = forked.shared.directory


pytest.register_assert_rewrite("tests.integration.example_runs")

# Modules of short tests, which run last.
_SHORT = Path(__file__).parent / "launcher"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules that take long first, so that no process starts a long one at the end."""
    items.sort(key=lambda item: (item.get_closest_marker("takes_minutes") is None, item.path.is_relative_to(_SHORT)))


def pytest_collection_finish() -> None:
    """Exclude the objects of all imports from garbage collection: they stay anyway.

    Collections are rarer than by default, because tracing creates thousands of objects at a time, most of which live for a while.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that configure tasks."""
    for name in list(os.environ):
        if name.startswith(forked.CLEARED_PREFIXES):
            monkeypatch.delenv(name)
    for name, value in forked.IMPORT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


# capget(2), version 3: a header of version and process, then effective, permitted and inheritable capabilities, 32 at a time.
_CAPABILITIES = 0x20080522
_DAC_OVERRIDE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capabilities(7)


@pytest.fixture
def without_dac_override() -> Iterator[None]:
    """Apply file permissions to root, too, by dropping CAP_DAC_OVERRIDE for a test."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root reads and writes every file here; only on Linux it can drop that capability")
    libc = ctypes.CDLL(None, use_errno=True)
    header, capabilities = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, capabilities) == 0, os.strerror(ctypes.get_errno())
    before = capabilities[0]
    capabilities[0] = before & ~_DAC_OVERRIDE
    assert libc.capset(header, capabilities) == 0, os.strerror(ctypes.get_errno())
    yield
    capabilities[0] = before
    assert libc.capset(header, capabilities) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    """Return the directory with the four published MNIST files, named by MNIST_DIR; skip if MNIST_DIR is not set."""
    variable = os.environ.get("MNIST_DIR")
    if not variable:
        pytest.skip("MNIST_DIR names no directory with the published MNIST files")
    directory = Path(variable)
    files = sorted(path.name for path in directory.glob("*-ubyte*"))
    assert len(files) == 4, f"MNIST_DIR={variable} holds {files}, not the four published files"
    return directory
