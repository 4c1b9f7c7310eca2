"""Examples train on the cluster, to the accuracy they are there for, and a program with manual placement computes what it should."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.e2e.code.brought import bare
from tests.e2e.kubernetes.launching import Launcher, left

pytestmark = [pytest.mark.kubernetes, pytest.mark.trains, pytest.mark.timeout(1500), pytest.mark.takes_minutes]

# One whose tasks are alike, and a program that says itself what runs where; mnist-ps trains in test_runs.py. Every example trains in
# tests/integration, and test_accepted.py has the cluster check what is rendered of each.
# Between which bounds each metric ends; spelled here, for what tests/integration imports takes seconds in every process.
HERE: dict[str, dict[str, tuple[float, float]]] = {
    "mnist-multiworker": {"accuracy": (0.97, 1.0)},
    "life": {"period": (30, 30), "since": (0, 30)},
}
# Programs as users bring them, in an image of their own: TensorFlow 1 with ps in `server.join()` and no chief, Keras fit.
BROUGHT = {
    "between-graph": bare("parameter_server", {"ps": {}, "worker": {"replicas": 2}}, "tests/programs", "between_graph.py"),
    "keras-fit": bare("multi_worker_mirrored", {"worker": {"replicas": 2}}, "examples/keras-fit", "train.py", "--epochs", "2"),
}
AT_ONCE = 2  # more would take as long on two cores, and each longer
TRAINED = 900.0  # seconds for one of them, on a machine that does much else


@pytest.fixture(scope="module")
def runs(launcher: Launcher, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[str]]]:
    """Start all that are asked for, a few at the same time."""
    asked = [str(item.callspec.params["name"]) for item in request.session.items if isinstance(item, pytest.Function) and _asks(item)]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        yield {name: pool.submit(trained, launcher, name) for name in asked}
        pool.shutdown(cancel_futures=True)


def _asks(item: pytest.Function) -> bool:
    return item.originalname == "test_it_comes_to_what_it_is_there_for"


def trained(launcher: Launcher, name: str) -> str:
    """Run an example to its end, check what it has come to, and return what was left of it after all of it was deleted."""
    launcher("up", f"examples/{name}.yaml", "--set", "kubernetes.tensorboard=false", timeout=TRAINED)
    status = launcher.status(name)
    assert status["state"] == "succeeded"
    for metric, (low, high) in HERE[name].items():
        assert low <= status["metrics"][metric] <= high, status["metrics"]
    launcher("down", name, "--delete-data", "--yes")
    return " ".join(one for one in left(launcher.namespace) if one in {name, f"{name}-record"})


@pytest.mark.parametrize("name", BROUGHT)
def test_programs_as_users_bring_them_run_in_an_image_that_has_no_trainer_for_them(name: str, launcher: Launcher, tmp_path: Path) -> None:
    """The image has the trainer, too, but what comes with the run is taken. A program that looks for a peer before that has a name starts again."""
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "name": name, "kubernetes": {"tensorboard": False}, **BROUGHT[name]}))
    launcher("up", str(file), timeout=TRAINED)
    told = launcher.status(name)
    assert (told["state"], {task["state"] for task in told["tasks"]}) == ("succeeded", {"succeeded"}), told
    launcher("down", name, "--delete-data", "--yes")


@pytest.mark.parametrize("name", HERE)
def test_it_comes_to_what_it_is_there_for(name: str, runs: dict[str, Future[str]]) -> None:
    assert runs[name].result(timeout=2 * TRAINED) == ""
