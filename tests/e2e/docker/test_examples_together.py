"""Examples of clusters train in containers to the accuracy they are there for."""

from pathlib import Path

import pytest

from tests.e2e.docker.examples import assert_the_launcher_trains, by_strategy

pytestmark = [pytest.mark.docker, pytest.mark.timeout(330), pytest.mark.usefixtures("image")]


@pytest.mark.parametrize("name", by_strategy("parameter_server", "multi_worker_mirrored"))
def test_the_launcher_trains_it(name: str, tmp_path: Path) -> None:
    assert_the_launcher_trains(name, tmp_path)
