"""Functions that are programs, and the errors of those that are not."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.programs.program_loading import load_program
from trainer.settings import Train
from trainer.workloads.catalog import CATALOG
from trainer.workloads.errors import WorkloadError
from trainer.workloads.loading import load_workload

MODULE = """
def counted(cluster, count, seed, data, step=1):
    return {"cluster": cluster, "count": count, "seed": seed, "data": data, "step": step}

def whole(cluster, params):
    return params

def trained(units):
    return None

class Program:
    pass

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "placed_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("placed_here", None)


def run(name: str, **train: Any) -> Any:
    return load_program(Train(workload=f"placed_here:{name}", **train))("a cluster")  # type: ignore[arg-type]


def test_a_program_gets_the_cluster_and_the_arguments_that_it_takes() -> None:
    arguments = run("counted", params={"count": 5}, seed=7, data="/data")
    assert arguments == {"cluster": "a cluster", "count": 5, "seed": 7, "data": "/data", "step": 1}
    assert run("whole", params={"any": 1}) == {"any": 1}


@pytest.mark.parametrize(
    "name, params, message",
    [
        ("counted", {"count": 1, "stpe": 2}, r"train\.params\.stpe: .* did you mean 'step'\?"),
        ("trained", {}, r"the first argument of trained \(.*placed_here\.py:8\) is not `cluster`"),
        ("Program", {}, "is the class Program; strategy manual runs a function"),
        ("number", {}, "is int; strategy manual runs a function"),
        ("nothing", {}, "has no nothing"),
    ],
)
def test_an_invalid_program_or_parameter_is_refused(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        run(name, params=params)


def test_a_missing_argument_is_reported_with_the_location_of_the_function() -> None:
    with pytest.raises(WorkloadError, match=r"counted \(.*placed_here\.py:2\) requires 'count', which is not given"):
        run("counted")


def test_a_program_is_not_loaded_as_a_workload() -> None:
    with pytest.raises(WorkloadError, match=r"is a program with manual placement, .* set strategy: manual"):
        load_workload(Train(workload="placed_here:whole"))


@pytest.mark.parametrize("name", [name for name, entry in CATALOG.items() if "manual" in entry.strategies])
def test_every_built_in_program_loads_and_takes_no_data(name: str) -> None:
    assert callable(load_program(Train(workload=name)))
    with pytest.raises(WorkloadError, match=f"{name} makes what it needs"):
        load_program(Train(workload=name, data="/data"))
