"""Runs the README's commands for Kubernetes, unchanged, in a namespace of their own.

Here their example computes nothing; test_runs.py trains it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.kubernetes.cluster import ROOT, Namespace, kubectl, stand_in_spec
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, remaining_objects

pytestmark = pytest.mark.kubernetes


def test_the_commands_of_the_readme_work_one_after_the_other(namespace: Namespace, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh kubernetes\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    example = tmp_path / "examples" / "mnist-ps.yaml"
    example.write_text(yaml.safe_dump(yaml.safe_load(example.read_text()) | yaml.safe_load(stand_in_spec(20, 0.05))))
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
    config["contexts"][0]["context"]["namespace"] = namespace.name
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    env = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")} | {
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    render = [sys.executable, "-m", "launcher", "render", str(example), "--to", "kubernetes", "-o", str(tmp_path / "k8s" / "mnist-ps")]
    subprocess.run(render, cwd=ROOT, env=env, capture_output=True, check=True, timeout=60)
    for block, text in zip(blocks, ("mnist-ps succeeded", "job.batch/mnist-ps-chief condition met"), strict=True):
        result = subprocess.run(
            ["bash", "-exc", block], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TRAINING_TIMEOUT, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert text in result.stdout
        assert remaining_objects(namespace) == []
