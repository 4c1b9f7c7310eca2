"""The training process, as the user's code finds it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.waiting import until
from trainer import error_file
from trainer.engine.connections import unreachable

ROOT = Path(__file__).parents[2]
SHOWS = """
import os
from trainer.workloads.errors import WorkloadError

class Shows:
    def __init__(self, params, data, seed):
        pass

    def model(self):
        raise WorkloadError("growth is " + os.environ["TF_FORCE_GPU_ALLOW_GROWTH"])

    optimizer = loss = metrics = train_data = eval_data = model
"""

# A module `keras` that waits for the gate file, then imports Keras, and after it TensorFlow.
GATED = """
import os, sys, time

while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.02)
sys.path.remove(os.path.dirname(__file__))
del sys.modules["keras"]
import keras
"""

STOPS = """
import hashlib, os, signal, sys, threading, time
from trainer.task import StopFlag
from tests.waiting import until

stop = StopFlag()
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
ready, begun = os.pipe()
if (child := os.fork()) == 0:
    os.write(begun, b"x")
    time.sleep(60)
    os._exit(0)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
time.sleep(0.5)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(f"stop requested: {stop()}", flush=True)

def watch():
    while not stop():
        time.sleep(0.05)
    os._exit(143)

threading.Thread(target=watch).start()
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # many minutes in C
"""


def test_a_stop_is_noticed_while_the_main_thread_is_in_c_and_no_other_signal_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPS], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stop requested: False\n"  # neither by another signal nor by one to a forked process
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 143
        finally:
            process.kill()


@pytest.mark.parametrize(
    "strategy,role,workload",
    [("parameter_server", "chief", "mnist_mlp"), ("manual", "chief", "placement"), ("multi_worker_mirrored", "worker", "mnist_mlp")],
)
def test_a_task_that_waits_for_its_peers_answers_and_stops_when_asked(
    strategy: str, role: str, workload: str, ports: Any, tmp_path: Path
) -> None:
    roles = ("chief", "worker") if strategy == "multi_worker_mirrored" else ("chief", "ps", "worker")
    cluster = {name: [ports.address()] for name in roles}
    own = cluster[role][0]
    ports.close(own)
    settings = {
        "run": "waits",
        "strategy": strategy,
        "run_dir": str(tmp_path),
        "scratch_dir": str(tmp_path),
        "train": {"workload": workload},
    }
    gate = tmp_path / "gate"
    if role == "chief":  # its servers end if it does not answer: it does so before it imports TensorFlow
        (tmp_path / "keras.py").write_text(GATED, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as worker:
        worker.settimeout(60)
        if role == "chief":  # it asks the worker first, then waits for the ps
            cluster["worker"] = [f"127.0.0.1:{worker.getsockname()[1]}"]
        environment = os.environ | {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}}),
            "TRAINER_SETTINGS": json.dumps(settings),
            "PYTHONPATH": str(tmp_path),
            "GATE": str(gate),
        }
        command = [sys.executable, "-P", "-m", "trainer.task"]
        with ExitStack() as stack:
            process: Any  # forked if it answers only after it has imported TensorFlow
            if role == "chief":
                process = stack.enter_context(subprocess.Popen(command, env=environment, cwd=ROOT))
            else:
                process = forked.Process(command, cwd=ROOT, env=environment, fds=(0, 1, 2), preload=forked.TENSORFLOW)
                stack.callback(process.close)
            try:
                until("its port to answer", lambda: unreachable(own, 1) is None, seen=lambda: (unreachable(own, 1), process.poll()))
                gate.touch()
                if role == "chief":
                    worker.accept()[0].close()
                    assert unreachable(own, 1) is None
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=20) == 143
            finally:
                process.kill()


def test_a_failed_import_of_tensorflow_leaves_its_error_for_the_parent(tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')", encoding="utf-8")
    settings = {"run": "fails", "run_dir": str(tmp_path), "scratch_dir": str(tmp_path), "train": {"workload": "mnist"}}
    path = tmp_path / "error"
    python_path = os.pathsep.join((str(tmp_path), str(ROOT)))
    environment = os.environ | {"TRAINER_SETTINGS": json.dumps(settings), "PYTHONPATH": python_path, error_file.VARIABLE: str(path)}
    environment.pop("TF_CONFIG", None)
    command = [sys.executable, "-P", "-m", "trainer.task"]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert error_file.last_line(path) == "ImportError: libcudart.so.12: cannot open shared object file"
    assert error_file.fingerprint(path), "it would be tried ten times"


def test_a_gpus_memory_is_taken_as_it_is_needed(tmp_path: Path) -> None:
    """All of TensorFlow, its servers included, reads only the variable; its effect shows only on a GPU.

    A task with a GPU that TensorFlow does not use reports that.
    """
    (tmp_path / "shows.py").write_text(SHOWS, encoding="utf-8")
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices/nvidia0").touch()
    with_a_gpu = "import sys; from pathlib import Path; from trainer import roles, task; roles.DEVICES = Path(sys.argv[1]); task.main()"
    settings = {
        "run": "shows",
        "run_dir": str(tmp_path),
        "scratch_dir": str(tmp_path),
        "train": {"workload": "shows:Shows", "steps": 1, "batch_size": 1},
    }
    environment = {name: value for name, value in os.environ.items() if name != "TF_FORCE_GPU_ALLOW_GROWTH"} | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "CUDA_VISIBLE_DEVICES": "99",  # one that no machine has
        "TF_CONFIG": json.dumps({"cluster": {"chief": ["127.0.0.1:1"]}, "task": {"type": "chief", "index": 0}}),
        "TRAINER_SETTINGS": json.dumps(settings),
    }
    (tmp_path / "with_a_gpu.py").write_text(with_a_gpu, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "with_a_gpu.py"), str(tmp_path / "devices")]
    result = forked.run(command, env=environment, preload=forked.TENSORFLOW)
    assert result.returncode == 2
    assert "growth is true" in result.stderr
    assert "TensorFlow uses no GPU, and this task has 1: " in result.stdout


EXITS = {
    "imported": (
        "import sys\nsys.exit('no licence')",
        "your code calls sys.exit('no licence') ({}:2), which ends this task before its work is done",
    ),
    "called": (
        "import sys\ndef train_data():\n    sys.exit()\nmodel = eval_data = train_data",
        "your code calls sys.exit() ({}:3), which ends this task before its work is done",
    ),
    "at once": ("import os\nos._exit(0)", "it exited with code 0 before its work was done"),
}


@pytest.mark.parametrize("kind", EXITS)
def test_code_that_ends_the_process_does_not_count_as_done(kind: str, trainers: Any, tmp_path: Path) -> None:
    text, expected = EXITS[kind]
    module = tmp_path / "leaves.py"
    module.write_text(text, encoding="utf-8")
    settings = {"run": "leaves", "run_dir": str(tmp_path), "scratch_dir": str(tmp_path), "train": {"workload": "leaves:model", "steps": 1}}
    run = trainers.trainer(env={"TRAINER_SETTINGS": json.dumps(settings), "PYTHONPATH": str(tmp_path)}, preload=forked.TENSORFLOW)
    assert run.code(90) == 2
    assert expected.format(module) in run.event("failed")["detail"]
    assert not run.events("restarting")
