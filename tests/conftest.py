"""Conditions of each test: the environment it starts from, and where real data is."""

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

# Where this is set, each of thousands of processes compiles every module again, and pytest rewrites each test file.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# On a busy machine an example takes as long as it takes: Hypothesis's limit of 0.2 s would fail tests by chance. CI has none anyway.
hypothesis.settings.register_profile("tests", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("tests")

# Marks whose tests are all below one directory: asked for alone, the others need not even be imported, TensorFlow with them.
OF_THEIR_OWN = {mark: Path(__file__).parent / "e2e" / mark for mark in ("docker", "kubernetes")}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Look only where tests are that are asked for: `pytest -m docker` says at once why it skips them, "not docker" imports none of them.

    Few modules have a slow test; to import all others takes ten seconds.
    """
    asked: str = config.getoption("markexpr")
    wanted = OF_THEIR_OWN.get(asked)
    if wanted is not None:
        return None if collection_path.is_relative_to(wanted) or wanted.is_relative_to(collection_path) else True
    terms = re.split(r"\s+and\s+", asked)
    if any(f"not {mark}" in terms and collection_path.is_relative_to(path) for mark, path in OF_THEIR_OWN.items()):
        return True
    module = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
    return True if "slow" in terms and module and "mark.slow" not in collection_path.read_text(encoding="utf-8") else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--costs=FILE` tell what each test costs, and `--write-messages` write the messages that tests compare."""
    parser.addoption(
        "--costs", metavar="FILE", type=Path, help="write processor seconds and seconds to FILE, and print the dearest modules and tests"
    )
    parser.addoption("--write-messages", action="store_true", help="write tests/*/messages.txt again, as `make golden` does")


def pytest_configure(config: pytest.Config) -> None:
    """Hear signals also when started in the background or by nohup, where they are ignored for us and so for what tests start."""
    if hasattr(config, "workerinput"):
        forked.shared.directory = config.workerinput["forked"]
    elif not forked.shared.directory:
        forked.shared.make()
    config.pluginmanager.register(GoldenMessages(write=config.getoption("write_messages")))
    if config.getoption("costs") and not config.getoption("collectonly"):
        config.pluginmanager.register(Costs())
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the test processes from one that has collected the tests."""
    given = config.invocation_params
    asked = {"arguments": [str(word) for word in given.args], "directory": str(given.dir)}
    Path(forked.shared.directory, forked.ASKED).write_text(json.dumps(asked), encoding="utf-8")
    for spec in specs:
        spec.python = shlex.join([sys.executable, str(Path(__file__).with_name("worker.py")), forked.shared.directory])
    if config.args_source is not pytest.Config.ArgsSource.ARGS and not config.getoption("keyword"):
        # All tests are asked for, and collecting them leaves a core idle for ten seconds: what forks tasks imports TensorFlow meanwhile.
        threading.Thread(target=forked.shared.prepare, args=(forked.TENSORFLOW,), daemon=True).start()


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_configure_node(node: Any) -> None:
    """Let all test processes have what forks tasks in common: one of them imports TensorFlow for it."""
    node.workerinput["forked"] = forked.shared.directory


pytest.register_assert_rewrite("tests.integration.example_runs")

# Modules of short tests: in the rest of the time that longer ones leave.
_SHORT = Path(__file__).parent / "launcher"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules that take long first: where several processes share the tests, none is left with a long one at the end."""
    items.sort(key=lambda item: (item.get_closest_marker("takes_minutes") is None, item.path.is_relative_to(_SHORT)))


def pytest_collection_finish() -> None:
    """Leave the garbage collector with what tests make: what TensorFlow's import and the tests are made of stays anyway.

    It comes less often than it would by itself: tracing makes thousands of objects at a time, most of which stay for a while.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test without the variables by which tasks are told what to do."""
    for name in list(os.environ):
        if name.startswith(forked.FOREIGN):
            monkeypatch.delenv(name)
    for name, value in forked.IMPORT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


# capget(2), version 3: a head of version and process, then effective, permitted and inheritable rights, 32 at a time.
_CAPABILITIES = 0x20080522
_EVERY_FILE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capabilities(7)


@pytest.fixture
def bound_by_rights() -> Iterator[None]:
    """Have root, where it runs the test, read and write what the rights of a file let its owner do, and no more."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root reads and writes every file here; on Linux alone it can leave that off")
    libc = ctypes.CDLL(None, use_errno=True)
    head, rights = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, rights) == 0, os.strerror(ctypes.get_errno())
    before = rights[0]
    rights[0] = before & ~_EVERY_FILE
    assert libc.capset(head, rights) == 0, os.strerror(ctypes.get_errno())
    yield
    rights[0] = before
    assert libc.capset(head, rights) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture(scope="session")
def mnist_dir() -> Path:
    """Return the directory with the four published MNIST files, named by MNIST_DIR; skip where there is none."""
    named = os.environ.get("MNIST_DIR")
    if not named:
        pytest.skip("MNIST_DIR names no directory with the published MNIST files")
    directory = Path(named)
    files = sorted(path.name for path in directory.glob("*-ubyte*"))
    assert len(files) == 4, f"MNIST_DIR={named} holds {files}, not the four published files"
    return directory
