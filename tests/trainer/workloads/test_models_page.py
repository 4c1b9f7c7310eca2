"""docs/models.md: its programs, run in their order, load the results of a run of docs/workloads.md's example."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.trainer.engine.test_loop import Output, settings
from trainer.engine import loop
from trainer.engine.collectives.all_reduce import AllReduce
from trainer.engine.replicated import ReplicatedSession
from trainer.events import Reporter
from trainer.workloads.loading import load_workload

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_programs_of_the_page_load_the_results_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [block for block in blocks("workloads.md") if "circle.compile" in block]
    (tmp_path / "circle.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run_dir = tmp_path / "runs" / "circle"
    config = settings(run_dir, 300, workload="circle:model", export=None, checkpoint={"every_steps": 300}, evaluate={"every_steps": 0})
    workload = load_workload(config.train)
    loop.run(ReplicatedSession(workload, config, AllReduce()), workload, config, Reporter("chief", Output()), lambda: False)
    shutil.copytree((run_dir / "export" / "best").resolve(), "circle-model")
    shutil.copytree(run_dir / "checkpoints", "circle-checkpoints")
    programs = blocks("models.md")
    assert len(programs) == 6
    exec("\n".join(programs), {"__name__": "page"})  # noqa: S102 - the page's own programs
    sys.modules.pop("circle", None)
