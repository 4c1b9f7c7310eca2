"""`up` on a real terminal: the live display, Ctrl-C once and twice, and the question about a changed spec."""

import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launcher.cli.conftest import LAUNCHER, Cli, Spec

# Makes the terminal the process's own, so that Ctrl-C on it becomes a signal.
_TAKE_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
CTRL_C = b"\x03"


class Terminal:
    """A `launcher` command line on a pseudo-terminal of 100 columns."""

    def __init__(self, arguments: tuple[str, ...], cwd: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *LAUNCHER, *arguments],
            cwd=cwd,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.output = ""

    def read_until(self, text: str, seconds: float = 60) -> None:
        """Read until the terminal has shown `text` since the last call."""
        start = len(self.output)
        deadline = time.monotonic() + seconds
        while text not in self.output[start:]:
            assert time.monotonic() < deadline, f"{text!r} is not shown: {self.output[-2000:]}"
            if not self._read(0.1):
                assert text in self.output[start:], f"ended without {text!r}: {self.output[-2000:]}"

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait(self, seconds: float = 60) -> int:
        """Return the exit code once all is read."""
        deadline = time.monotonic() + seconds
        while self._read(0.1):
            assert time.monotonic() < deadline, f"still runs: {self.output[-2000:]}"
        return self.process.wait(timeout=5)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=5)
        os.close(self._master)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        with contextlib.suppress(OSError):  # Linux: the other side is closed
            if data := os.read(self._master, 65536):
                self.output += data.decode("utf-8", "replace")
                return True
        return False


Opener = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path, environment: dict[str, str], cli: Cli) -> Iterator[Opener]:
    """Open terminals with `terminal(*arguments)`; all are closed at the end, before the runs are killed."""
    del cli
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, **variables: str) -> Terminal:
        opened.append(Terminal(arguments, tmp_path, environment | variables))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def state(cli: Cli) -> str:
    return str(json.loads(cli("status", "--json").stdout)["state"])


def test_the_display_has_a_bar_facts_and_each_task(terminal: Opener, spec: Spec) -> None:
    up = terminal("up", spec("steps", "25", "0.1"))
    up.read_until("examples/s")
    for shown in ("step", "loss", "accuracy", "elapsed", "chief", "running"):
        assert shown in up.output
    assert up.wait() == 0
    assert "toy succeeded" in up.output
    # The cursor, hidden while the display is drawn, is back.
    assert up.output.rfind("\x1b[?25h") > up.output.rfind("\x1b[?25l") > -1


def test_ctrl_c_once_saves_and_stops(terminal: Opener, spec: Spec, cli: Cli, tmp_path: Path) -> None:
    up = terminal("up", spec("forever"))
    up.read_until("| up")
    up.type(CTRL_C)
    up.read_until("press Ctrl-C again to stop at once")
    assert up.wait() == 130
    assert "saved" in up.output
    assert (tmp_path / "runs" / "toy" / "saved").is_file()
    assert "launcher up" in up.output
    assert state(cli) == "stopped"


def test_ctrl_c_twice_stops_at_once(terminal: Opener, spec: Spec, cli: Cli) -> None:
    up = terminal("up", spec("stubborn", grace="1h"))
    up.read_until("| up")
    pid = json.loads(cli("status", "--json").stdout)["tasks"][0]["pid"]
    up.type(CTRL_C)
    up.read_until("not now")
    up.type(CTRL_C)
    up.read_until("stopping at once")
    assert up.wait() == 130
    assert not Path(f"/proc/{pid}").exists() or sys.platform != "linux"
    assert state(cli) in {"stopped", "failed"}


def test_a_changed_spec_prompts_for_an_answer(terminal: Opener, spec: Spec, cli: Cli) -> None:
    assert cli("up", spec("steps", "2", "0")).returncode == 0
    for steps, answer, code, shown in (
        ("3", b"\n", 2, "nothing was started"),
        ("3", b"resume\n", 0, "toy continues"),
        ("4", b"fresh\n", 0, "starts from the first step"),
    ):
        up = terminal("up", spec("steps", steps, "0"))
        up.read_until("quit")
        up.type(answer)
        assert up.wait() == code
        assert shown in up.output


def test_ctrl_c_in_logs_does_not_stop_the_run(terminal: Opener, spec: Spec, cli: Cli) -> None:
    assert cli("up", spec("forever"), "--detach").returncode == 0
    logs = terminal("logs", "-f")
    logs.read_until("| up")
    logs.type(CTRL_C)
    assert logs.wait() == 130
    assert "Traceback" not in logs.output
    assert state(cli) == "running"


def test_status_has_colours_unless_no_color_is_set(terminal: Opener, spec: Spec, cli: Cli) -> None:
    assert cli("up", spec("steps", "1", "0")).returncode == 0
    coloured = terminal("status")
    assert coloured.wait() == 0
    assert "\x1b[32m✔ succeeded" in coloured.output
    plain = terminal("status", NO_COLOR="1")
    assert plain.wait() == 0
    assert "✔ succeeded" in plain.output
    assert "\x1b[3" not in plain.output
