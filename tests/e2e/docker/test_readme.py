"""The commands of the README's Docker section work."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.docker.running import NOTHING, ROOT, cleaned, objects_of
from tests.processes import free_port

pytestmark = [pytest.mark.docker, pytest.mark.trains, pytest.mark.usefixtures("image")]


def test_the_commands_of_the_readme_work_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh docker\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    if objects_of("mnist-ps") != NOTHING:
        pytest.skip("this engine has a run called mnist-ps, which another user may need")
    for directory in ("examples", "compose"):
        shutil.copytree(ROOT / directory, tmp_path / directory)
    # The committed files, except for the port, which another program may use.
    port, example, composed = free_port(), tmp_path / "examples" / "mnist-ps.yaml", tmp_path / "compose" / "mnist-ps.yaml"
    example.write_text(f"{example.read_text()}\ntensorboard: {{port: {port}}}\n")
    composed.write_text(composed.read_text().replace("published: '6006'", f"published: '{port}'"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # The README's first run is of the same spec, on this machine and from this directory.
    first = ["bash", "-ec", "launcher up examples/mnist-ps.yaml --set train.steps=50"]
    subprocess.run(first, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=True)
    with cleaned("mnist-ps", tmp_path / "runs") as run, contextlib.ExitStack() as port_holder:
        outputs = []
        for block in blocks:
            if block is blocks[0]:
                port_holder.enter_context(socket.create_server(("127.0.0.1", port)))  # TensorBoard's
            else:
                port_holder.close()
            result = subprocess.run(
                ["bash", "-exc", block], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
            )
            assert result.returncode == 0, result.stdout + result.stderr
            outputs.append(result.stdout)
            if block is blocks[0]:
                status = run.status()
                assert status["state"] == "succeeded"
                assert status["metrics"]["accuracy"] >= 0.97  # of the held-out digits
                status_json = subprocess.run(
                    ["launcher", "status", "mnist-ps", "--json"], cwd=tmp_path, env=environment, capture_output=True, check=True
                )
                assert json.loads(status_json.stdout)["backend"] == "docker"
                assert b"mnist-ps is on local (succeeded), on docker (succeeded): using the one on docker; --on" in status_json.stderr
        assert "mnist-ps succeeded" in outputs[0]
        assert objects_of("mnist-ps") == NOTHING | {"volumes": ["mnist-ps_run"]}
