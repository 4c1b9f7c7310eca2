"""Users' programs of several styles, in tests/programs, run unchanged: to their end, without restarts, and with a checkpoint."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import leftovers
from tests.integration.running import ROOT, Run
from tests.trainer.tensorboard_reader import read_events


@dataclass(frozen=True)
class Program:
    """A program, its cluster, the task whose last line that matches `pattern` has the result, and the checkpoint that it writes."""

    name: str
    strategy: str
    roles: dict[str, Any]
    task: str
    pattern: str
    checkpoint: str
    expected: tuple[float, float] = field(default=(1.9, 2.1))  # the slope of the line that it learns


PROGRAMS = [
    Program(
        "between_graph",
        "parameter_server",
        {"ps": {}, "worker": {"replicas": 2}},
        "worker-0",
        r"loss (\S+)",
        "model.ckpt-30.index",
        (0, 0.01),
    ),
    Program("coordinator", "parameter_server", {"chief": {}, "ps": {}, "worker": {}}, "chief", r"40 steps, slope (\S+)", "ckpt-1.index"),
    Program("custom_loop", "multi_worker_mirrored", {"worker": {"replicas": 2}}, "worker-1", r"slope (\S+)", "ckpt-1.index"),
    # The evaluator ends by itself; one with `--endless` needs limits.evaluator_grace.
    Program("sidecar", "single", {"chief": {}, "evaluator": {}}, "evaluator", r"mae: (\S+)", "ckpt-3.index", (0, 0.1)),
]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_a_users_program_runs_unchanged(program: Program, tmp_path: Path) -> None:
    spec = {
        "version": 1,
        "name": program.name.replace("_", "-"),
        "strategy": program.strategy,
        "roles": program.roles,
        "code": str(ROOT / "tests" / "programs"),
        "command": ["python", f"{program.name}.py"],
        "limits": {"worker_grace": "1s"},  # a worker in `server.join()` would use all of it
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(spec))
    run = Run(str(spec["name"]), tmp_path / "runs")
    result = run.launcher("up", str(file), "--json")
    leftovers.assert_none(run.directory)
    assert run.status()["state"] == "succeeded"
    assert '"event":"restarting"' not in result.stdout.replace(" ", "")
    low, high = program.expected
    assert low <= float(re.findall(program.pattern, run.log(program.task))[-1]) <= high
    assert (run.directory / "checkpoints" / program.checkpoint).is_file()
    if "evaluator" in program.roles:
        assert read_events(run.directory / "logs" / "validation").summaries
