"""The server of a ps or worker starts without TensorFlow's Python."""

import json
import subprocess
import sys
from pathlib import Path

from trainer.engine.parameter_server.bare_server import server_class

ROOT = Path(__file__).resolve().parents[4]

PROGRAM = """
import json, socket, sys
from trainer.engine.parameter_server.bare_server import server_class
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = server_class()({"ps": [f"127.0.0.1:{port}"]}, job_name="ps", task_index=0, protocol="grpc", start=True)
socket.create_connection(("127.0.0.1", port), 5).close()
names = {name.split(".")[0] for name in sys.modules}
print(json.dumps({"target": server.target, "port": port, "keras": "keras" in names, "modules": len(sys.modules)}))
"""


def test_it_serves_without_importing_keras_or_most_of_tensorflow() -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    report = json.loads(process.stdout.splitlines()[-1])
    assert report["target"] == f"grpc://127.0.0.1:{report['port']}"
    assert report["keras"] is False
    assert report["modules"] < 800


def test_a_process_that_has_imported_tensorflow_uses_tensorflows_own_class() -> None:
    import tensorflow as tf

    assert server_class() is tf.distribute.Server
    assert sys.modules["tensorflow"] is tf
