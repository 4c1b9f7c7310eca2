"""An example trains on the cluster to its accuracy, a program with manual placement computes its result, and users' programs run."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.e2e.code.brought import bare
from tests.e2e.kubernetes.launching import Launcher, remaining_objects

pytestmark = [pytest.mark.kubernetes, pytest.mark.trains, pytest.mark.takes_minutes]

# An all-reduce, and a program with manual placement; mnist-ps trains in test_runs.py. Every example trains in tests/integration, and
# test_accepted.py checks the rendered objects of each on the cluster.
# The bounds of each metric at the end. They are repeated here, because tests/integration takes seconds to import in every process.
EXPECTED: dict[str, dict[str, tuple[float, float]]] = {
    "mnist-multiworker": {"accuracy": (0.97, 1.0)},
    "life": {"period": (30, 30), "since": (0, 30)},
}
# Users' programs, in an image of their own: TensorFlow 1 with ps in `server.join()` and no chief, Keras fit.
PROGRAMS = {
    "between-graph": bare("parameter_server", {"ps": {}, "worker": {"replicas": 2}}, "tests/programs", "between_graph.py"),
    "keras-fit": bare("multi_worker_mirrored", {"worker": {"replicas": 2}}, "examples/keras-fit", "train.py", "--epochs", "2"),
}
AT_ONCE = 2  # with more, all of them would take as long on two cores
TIMEOUT = 900.0  # seconds for one of them, on a busy machine


@pytest.fixture(scope="module")
def runs(launcher: Launcher, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[str]]]:
    """Start all that are selected, a few at the same time."""
    selected = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and _trains_an_example(item)
    ]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        yield {name: pool.submit(trained, launcher, name) for name in selected}
        pool.shutdown(cancel_futures=True)


def _trains_an_example(item: pytest.Function) -> bool:
    return item.originalname == "test_an_example_reaches_its_result"


def trained(launcher: Launcher, name: str) -> str:
    """Run an example to its end, check its result, delete all of it, and return its remaining objects."""
    launcher("up", f"examples/{name}.yaml", "--set", "kubernetes.tensorboard=false", timeout=TIMEOUT)
    status = launcher.status(name)
    assert status["state"] == "succeeded"
    for metric, (low, high) in EXPECTED[name].items():
        assert low <= status["metrics"][metric] <= high, status["metrics"]
    launcher("down", name, "--delete-data", "--yes")
    return " ".join(item for item in remaining_objects(launcher.namespace) if item in {name, f"{name}-record"})


@pytest.mark.parametrize("name", PROGRAMS)
def test_users_programs_run_in_an_image_whose_own_trainer_is_not_used(name: str, launcher: Launcher, tmp_path: Path) -> None:
    """Tasks use the trainer that comes with the run. A program that looks up a peer before that has a name is restarted."""
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "name": name, "kubernetes": {"tensorboard": False}, **PROGRAMS[name]}))
    launcher("up", str(file), timeout=TIMEOUT)
    status = launcher.status(name)
    assert (status["state"], {task["state"] for task in status["tasks"]}) == ("succeeded", {"succeeded"}), status
    launcher("down", name, "--delete-data", "--yes")


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_reaches_its_result(name: str, runs: dict[str, Future[str]]) -> None:
    assert runs[name].result(timeout=2 * TIMEOUT) == ""
