"""Workloads by name: the built-in ones, the user's own, and each way in which a name can be wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.settings import Train
from trainer.workloads.catalog import CATALOG, with_defaults
from trainer.workloads.errors import DataError, WorkloadError
from trainer.workloads.loading import load_agent, load_workload
from trainer.workloads.protocol import Agent

WHOLE = """
class Whole:
    def __init__(self, params, data, seed):
        self.arguments = (params, data, seed)
    def model(self): ...
    def optimizer(self): ...
    def loss(self, targets, outputs): ...
    def metrics(self, targets, outputs): ...
    def train_data(self, shard): ...
    def eval_data(self, batch_size): ...

class Part:
    def __init__(self, params, data, seed):
        pass
    def model(self): ...
    def loss(self, targets, outputs): ...

class Bare:
    pass

class Picky(Whole):
    def __init__(self, params, data, seed):
        raise RuntimeError("no layer of -1 units")

number = 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory on Python's path for the user's code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "whole.py").write_text(WHOLE)
    (tmp_path / "mine" / "broken.py").write_text("x = 1\nif x\n    pass\n")
    (tmp_path / "mine" / "needy.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "mine" / "failing.py").write_text("\n\nweights = {}['start']\n")
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "mine":
            del sys.modules[name]


@pytest.mark.parametrize("name", sorted(name for name, entry in CATALOG.items() if "single" in entry.strategies and not entry.agent))
def test_every_built_in_workload_loads(name: str) -> None:
    workload = load_workload(with_defaults(Train(workload=name)))
    model = workload.model()
    assert model.trainable_variables
    inputs, targets = next(iter(workload.eval_data(5)))
    assert {"accuracy", "auc", "w"} & workload.metrics(targets, model(inputs)).keys()


@pytest.mark.parametrize("name", sorted(CATALOG))
def test_only_an_agent_is_loaded_as_an_agent(name: str) -> None:
    agent = load_agent(with_defaults(Train(workload=name)))
    assert (agent is not None) == (name == "gridworld_dqn")
    assert agent is None or isinstance(agent, Agent)


@pytest.mark.usefixtures("code")
def test_a_users_class_gets_params_data_and_seed() -> None:
    workload = load_workload(Train(workload="mine.whole:Whole", params={"a": 1}, data="/d", seed=5))
    assert workload.arguments == ({"a": 1}, "/d", 5)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    "name,message",
    [
        (
            "mnits",
            r"train\.workload 'mnits': no such workload\. Expected cifar10, click_through, gridworld_dqn, life, linear_regression, .*, or package\.module:name",
        ),
        ("mine.whole:", "no such workload"),
        (":Whole", "no such workload"),
        ("nowhere.code:Whole", r"no module nowhere on Python's path.*`code`"),
        ("mine.absent:Whole", r"no module mine\.absent on Python's path"),
        ("mine.whole.inner:Whole", r"no module mine\.whole\.inner"),
        ("mine.needy:Any", r"mine\.needy imports not_installed_anywhere, which is not installed.*needy\.py:1"),
        ("mine.broken:Any", r"importing mine\.broken failed: SyntaxError: expected ':' \(.*broken\.py:2\)"),
        ("mine.failing:Any", r"importing mine\.failing failed: KeyError: 'start' \(.*failing\.py:3\)"),
        ("mine.whole:Hole", r"whole\.py has no Hole\. Its classes: Bare, Part, Picky, Whole"),
        ("mine.whole:number", r"mine\.whole:number is int in .*whole\.py; expected a workload class, a compiled Keras model"),
        ("mine.whole:Part", "mine.whole:Part has no method optimizer, metrics, train_data, eval_data"),
        ("mine.whole:Bare", r"TypeError: .*takes no arguments.*Expected a class that takes `params`, `data` and `seed`"),
        ("mine.whole:Picky", r"RuntimeError: no layer of -1 units \(.*whole\.py:\d+\)"),
    ],
)
def test_each_mistake_is_named(name: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load_workload(Train(workload=name))


def test_missing_data_stays_a_data_error() -> None:
    with pytest.raises(DataError, match="/no/such/place"):
        load_workload(Train(workload="mnist", data="/no/such/place"))
