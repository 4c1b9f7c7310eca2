"""docs/workloads.md: its example works as it stands, its tables are the catalog's."""

import re
from pathlib import Path

import keras
import pytest

from tests.trainer.workloads.learning import train
from trainer.settings import Train
from trainer.workloads.catalog import CATALOG
from trainer.workloads.loading import load_workload

PAGE = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")


def test_the_example_of_a_users_workload_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code
    (tmp_path / "line.py").write_text(code.group(1))
    monkeypatch.syspath_prepend(str(tmp_path))
    workload = load_workload(Train.model_validate({"workload": "line:Line", "steps": 200, "params": {"slope": 3.0}}))
    model = workload.model()
    train(workload, model, 200)
    slope, offset = (float(keras.ops.squeeze(variable)) for variable in model.trainable_variables)
    assert slope == pytest.approx(3, abs=0.1)
    assert offset == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_the_tables_are_the_catalogs(name: str) -> None:
    section = PAGE.split(f"`train.params` of {name}:")[1].split("`train.params` of")[0].split("##")[0]
    documented = re.findall(r"^\| `(\w+)` \| (\S+) \| (.*) \|$", section, re.MULTILINE)
    fields = CATALOG[name].params.model_fields
    assert documented == [(field, str(info.default), info.description) for field, info in fields.items()]
    assert f" {CATALOG[name].summary} |" in PAGE
