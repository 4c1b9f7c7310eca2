"""A ps that holds rows restarts itself when its chief's process ends, in the same process and with the same arguments."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.engine.parameter_server.restart_on_chief_exit import rows_marker

PS = """
import os, sys, time
from trainer.engine.parameter_server.restart_on_chief_exit import RestartOnChiefExit
from trainer.tf_config import parse
holder = RestartOnChiefExit(parse(sys.argv[1]), sys.argv[2])
print("begins", os.getpid(), flush=True)
while True:
    holder.poll()
    time.sleep(0.02)
"""


@pytest.fixture
def chief() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        yield listener


def test_a_ps_restarts_once_its_chief_has_ended_but_only_if_it_holds_rows(chief: socket.socket, tmp_path: Path) -> None:
    port = chief.getsockname()[1]
    cluster = {"chief": [f"127.0.0.1:{port}"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:1"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}})
    command = [sys.executable, "-c", PS, config, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ps:
        assert ps.stdout
        try:
            first_line = ps.stdout.readline()
            assert first_line == f"begins {ps.pid}\n"
            chief.settimeout(0.3)
            with pytest.raises(TimeoutError):  # without rows it does not connect to the chief
                chief.accept()
            chief.settimeout(30)
            rows_marker(str(tmp_path), "ps-0").touch()
            connection, _ = chief.accept()
            connection.close()  # as the kernel does when a process ends
            assert ps.stdout.readline() == first_line
            assert not rows_marker(str(tmp_path), "ps-0").exists()
        finally:
            ps.kill()
