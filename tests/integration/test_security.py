"""TensorFlow's port executes whatever it receives: in a local run only this machine may reach it, from the start.

test_recovery.py and test_strategies.py check the ports of clusters that train.
"""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.integration.running import ROOT
from tests.trainer.test_socket_filter import own_address, reachable
from tests.waiting import until

TRAIN = {"workload": "mnist_mlp", "steps": 100, "evaluate": {"every_steps": 0}}


def _listens_everywhere(port: int) -> bool:
    """Return whether a socket listens at `port` on every address: Linux, Documentation/networking/proc_net_tcp.rst; 0A is TCP_LISTEN."""
    tables = [path for family in ("tcp", "tcp6") if (path := Path(f"/proc/net/{family}")).exists()]
    rows = [line.split() for path in tables for line in path.read_text(encoding="utf-8").splitlines()]
    return any(set(own.partition(":")[0]) == {"0"} and own.endswith(f":{port:04X}") and state == "0A" for _, own, _, state, *_ in rows)


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's; docs/architecture.md says what to do elsewhere")
@pytest.mark.parametrize("strategy,train", [("parameter_server", TRAIN), ("manual", {"workload": "placement"})])
@pytest.mark.parametrize("silent", [False, True], ids=["missing", "silent"])
def test_the_chiefs_port_is_closed_while_peers_do_not_answer(strategy: str, train: dict[str, Any], silent: bool, tmp_path: Path) -> None:
    own = own_address()
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(3):
            reserved = stack.enter_context(socket.socket())
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{reserved.getsockname()[1]}")
            if silent and len(addresses) > 1:  # the peer accepts connections, and TensorFlow waits for its answer
                reserved.listen()
        cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
        settings = {"run": "alone", "strategy": strategy, "run_dir": str(tmp_path), "scratch_dir": str(tmp_path), "train": train}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}),
            "TRAINER_SETTINGS": json.dumps(settings),
        }
        command = [sys.executable, "-P", "-m", "trainer.task"]
        task = forked.Process(command, cwd=ROOT, env=environment, fds=(0, 1, 2), preload=forked.TENSORFLOW)
        stack.callback(task.wait)
        stack.callback(task.kill)
        port = int(addresses[0].rpartition(":")[2])

        def is_open() -> bool:
            return _listens_everywhere(port) if silent else reachable("127.0.0.1", port)

        # If no peer is missing, TensorFlow itself opens the port.
        until("the port to be opened", is_open, seen=task.poll)
        # The watcher checks fifty times a second. A task that has died closes the port to this machine, too.
        until("the port to be closed to other machines", lambda: not reachable(own, port) and is_open(), seen=task.poll)
