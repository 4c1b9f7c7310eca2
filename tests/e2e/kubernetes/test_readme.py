"""The README's commands for Kubernetes, as they stand there, in a namespace of their own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl
from tests.e2e.kubernetes.launching import UP, left

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(480)]


def test_the_commands_of_the_readme_work_one_after_the_other(namespace: Namespace, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh kubernetes\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for directory in ("examples", "k8s"):
        shutil.copytree(ROOT / directory, tmp_path / directory)
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    config["contexts"][0]["context"]["namespace"] = namespace.name
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    env = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")} | {
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for block, said in zip(blocks, ("mnist-ps succeeded", "job.batch/mnist-ps-chief condition met"), strict=True):
        done = subprocess.run(["bash", "-exc", block], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=UP, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert said in done.stdout
        assert left(namespace) == []
