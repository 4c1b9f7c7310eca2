"""Runs the README's commands, unchanged, in a fresh copy of the project."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.main import VERBS
from tests import forked

ROOT = Path(__file__).parents[2]
DEADLINE = 500.0
# `make demo` starts the launcher, servers and their chief normally, and the last command the launcher and a program. The run that continues from
# step 500 takes two more starts of the same launcher and tasks: these are forked, which saves ten seconds of a core each time.
FORKED = """
launcher() {{
    if [[ "$*" == "up cluster.yaml --set "* ]]; then {python} {client} "$@"; else command launcher "$@"; fi
}}
"""
CLIENT = """
import os, pathlib, signal, sys
sys.path.insert(0, {root!r})
from tests import forked
forked.shared.directory = {directory!r}
command = [sys.executable, "-m", "launcher", *sys.argv[1:]]
process = forked.Process(command, cwd=pathlib.Path.cwd(), env=os.environ, fds=(0, 1, 2), preload=forked.TENSORFLOW)
signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))  # at the deadline: the launcher is in another session
sys.exit(process.wait())
"""


def commands() -> list[str]:
    """Return the README's shell blocks; blocks that are not to be run are marked otherwise."""
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def fresh_copy(tmp_path: Path) -> Path:
    """Return a copy of the project as a clone would have it, with the environment that runs this test."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    copy = tmp_path / "project"
    for name in filter(None, listing.stdout.split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    (copy / ".venv").symlink_to(sys.prefix)
    # Older than the environment, so that make leaves it as it is.
    for path in [copy / "pyproject.toml", *(copy / "requirements").iterdir()]:
        os.utime(path, (0, 0))
    return copy


@pytest.mark.slow
def test_the_commands_of_the_readme_work_one_after_the_other(fresh_copy: Path, tmp_path: Path) -> None:
    forked.launcher("--version", preload=forked.TENSORFLOW)  # starts the server that forks the others
    (client := tmp_path / "client.py").write_text(CLIENT.format(root=str(ROOT), directory=forked.shared.directory))
    functions = FORKED.format(python=shlex.quote(sys.executable), client=shlex.quote(str(client)))
    script = "\n".join(["set -euo pipefail", functions, *commands()])
    environment = {**os.environ, "PYTHONPATH": str(fresh_copy), "NO_COLOR": "1"}
    with subprocess.Popen(
        ["bash", "-xc", script],
        cwd=fresh_copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
    assert process.returncode == 0, output
    accuracy = re.search(r"Accuracy on held-out digits: ([\d.]+)%", output)
    assert accuracy, output
    assert float(accuracy[1]) >= 97
    assert "mnist-mlp succeeded" in output
    assert "from the checkpoint of step 500" in output
    assert re.search(r"worker-0: trained in .* test accuracy", output), output
    assert "own succeeded" in output


def test_the_readme_has_commands_to_run() -> None:
    assert len(commands()) >= 4
    assert any("make demo" in block for block in commands())
    assert sum(line.startswith("launcher up cluster.yaml --set ") for block in commands() for line in block.splitlines()) == 2  # see FORKED


def test_the_readme_names_every_verb() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Verbs")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(VERBS)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"])
def test_every_link_has_a_target(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / document).parent.joinpath(link).exists()] == []
