"""The README's Docker section works as it stands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.docker.running import NOTHING, ROOT, cleaned, left

pytestmark = [pytest.mark.docker, pytest.mark.timeout(200), pytest.mark.usefixtures("image")]


def test_the_commands_of_the_readme_work_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh docker\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    if left("mnist-ps") != NOTHING:
        pytest.skip("this engine has a run called mnist-ps, which is somebody's")
    for directory in ("examples", "compose"):
        shutil.copytree(ROOT / directory, tmp_path / directory)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with cleaned("mnist-ps", tmp_path / "runs"):
        done = subprocess.run(
            ["bash", "-exc", "\n".join(blocks)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "mnist-ps succeeded" in done.stdout
        assert left("mnist-ps") == {"containers": [], "networks": [], "volumes": ["mnist-ps_run"]}
