"""docs/workloads.md: its examples work as printed; each built-in workload and program has its summary, and a link to its parameters."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

from tests.trainer.workloads.learning import accuracy, train
from trainer.settings import Train
from trainer.workloads.catalog import CATALOG
from trainer.workloads.loading import load_workload

DOCS = Path(__file__).parents[3] / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
PAGE = (DOCS / "workloads.md").read_text(encoding="utf-8")
PAGES = PAGE + (DOCS / "programs.md").read_text(encoding="utf-8")
SPEC = (DOCS / "spec.md").read_text(encoding="utf-8")


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write the page's programs as modules; each is found by a text that only it has."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for module, mark in (("circle", "circle.compile"), ("function", "def line("), ("line", "class Line")):
        (program,) = [block for block in blocks if mark in block]
        if module == "circle":
            program += next(block for block in blocks if block.startswith("def callbacks("))
        assert len(program.splitlines()) <= 45
        (tmp_path / f"{module}.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for module in ("circle", "function", "line"):
        sys.modules.pop(module, None)


@pytest.mark.usefixtures("examples")
def test_the_example_of_a_users_class_learns() -> None:
    workload = load_workload(Train.model_validate({"workload": "line:Line", "steps": 200, "params": {"slope": 3.0}}))
    model = workload.model()
    train(workload, model, 200)
    slope, offset = (float(keras.ops.squeeze(variable)) for variable in model.trainable_variables)
    assert slope == pytest.approx(3, abs=0.1)
    assert offset == pytest.approx(0, abs=0.1)


@pytest.mark.usefixtures("examples")
def test_the_example_of_a_compiled_model_learns() -> None:
    workload: Any = load_workload(Train.model_validate({"workload": "circle:model", "params": {"units": 24, "patience": 4}}))
    assert [callback.patience for callback in workload.callbacks() if isinstance(callback, keras.callbacks.EarlyStopping)] == [4]
    model = workload.model()
    train(workload, model, 300)
    assert accuracy(workload, model) > 0.9


@pytest.mark.usefixtures("examples")
def test_the_example_of_a_model_function_learns() -> None:
    workload = load_workload(Train.model_validate({"workload": "function:line", "params": {"learning_rate": 0.1}}))
    model = workload.model()
    train(workload, model, 200)
    slope, offset = (
        float(keras.ops.squeeze(variable)) for variable in sorted(model.trainable_variables, key=lambda variable: -variable.shape.rank)
    )
    assert slope == pytest.approx(3, abs=0.1)
    assert offset == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_the_pages_name_each_workload_and_lead_to_its_parameters(name: str) -> None:
    assert f"](spec.md#{name})" in PAGES
    assert f"### `{name}`\n\n{CATALOG[name].summary[:1].upper()}{CATALOG[name].summary[1:]}." in SPEC
    assert f" {CATALOG[name].summary} |" in PAGE
    assert f"| `{name}` |" in README
