"""Every example trains on the cluster, to the accuracy it is there for; the programs placed by hand compute what they should."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.e2e.kubernetes.cluster import EXAMPLES
from tests.e2e.kubernetes.launching import Launcher, left
from tests.e2e.reached import SETTINGS, assert_reached

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900), pytest.mark.takes_minutes]

ELSEWHERE = {"mnist-ps"}  # in test_up.py by the launcher, in test_runs.py by kubectl alone
HERE = [name for name in EXAMPLES if name not in ELSEWHERE]
# Two cores are a whole node here, and never free beside others' TensorBoards.
SMALLER = {"gridworld-dqn": ("roles.chief.cpu=1",)}
AT_ONCE = 2  # more would take as long on two cores, and each longer
TRAINED = 400.0  # seconds for one of them, on a machine that does much else


def test_every_example_is_run() -> None:
    assert sorted(SETTINGS) == EXAMPLES


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
    changes = [word for change in ("kubernetes.tensorboard=false", *SETTINGS[name], *SMALLER.get(name, ())) for word in ("--set", change)]
    launcher("up", f"examples/{name}.yaml", *changes, timeout=TRAINED)
    status = launcher.status(name)
    assert status["state"] == "succeeded"
    assert_reached(name, status, launcher("logs", name, "--raw"))
    launcher("down", name, "--delete-data", "--yes")
    return " ".join(one for one in left(launcher.namespace) if one in {name, f"{name}-record"})


@pytest.mark.parametrize("name", HERE)
def test_it_comes_to_what_it_is_there_for(name: str, runs: dict[str, Future[str]]) -> None:
    assert runs[name].result(timeout=2 * TRAINED) == ""
