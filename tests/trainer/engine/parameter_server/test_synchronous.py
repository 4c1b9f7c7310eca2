"""Synchronous parameter servers: the weights of one process with the whole batch, and no wait for a slow worker."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.engine import drive_synchronous
from tests.trainer.engine.drive_synchronous import CASES, DIFFERING, ROUNDS, SAVED, SLOWER, STEP_SECONDS, TABLES, WORKERS
from tests.trainer.engine.drivers import run_driver

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]  # the driver starts six processes and traces a dozen functions

DRIVER = Path(drive_synchronous.__file__)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_driver(DRIVER, tmp_path_factory.mktemp("servers"))


@pytest.mark.parametrize("case", sorted({**CASES, **TABLES, SAVED: {}}))
def test_three_workers_on_two_servers_learn_what_one_process_learns_with_three_times_the_batch(report: dict[str, Any], case: str) -> None:
    """The sums of 3 means of 8 examples and the mean of 24 round differently."""
    assert report["cases"][case]["step"] == ROUNDS
    assert report["cases"][case]["difference"] < (1e-2 if case == "bfloat16" else 2e-5)


def test_gradients_travel_as_bfloat16_if_the_wire_is_set(report: dict[str, Any]) -> None:
    assert report["cases"]["bfloat16"]["difference"] > 1e-5


def test_no_gradient_is_dropped_if_all_are_needed(report: dict[str, Any]) -> None:
    assert {case["dropped"] for case in report["cases"].values()} == {0}


def test_a_round_does_not_wait_for_a_backup_that_is_ten_times_slower(report: dict[str, Any]) -> None:
    """It takes part in few of 70 rounds; if rounds waited for it, it would take part in all. `make bench` measures the times."""
    steps = report["steps one slower"]
    assert 1 <= steps["worker-2"] < 60
    assert min(count for worker, count in steps.items() if worker != "worker-2") > steps["worker-2"]


def test_gradients_beyond_the_needed_ones_are_dropped_and_counted(report: dict[str, Any]) -> None:
    """70 rounds need 2 of 3 gradients: each drops at most one; of a worker that is ten times slower, one for each of its steps."""
    assert 2 <= report["dropped one slower"] <= report["all seconds one slower"] / (SLOWER * STEP_SECONDS) + 4
    assert 10 <= report["dropped alike"] <= 80


def test_rows_learn_with_a_backup_worker_too(report: dict[str, Any]) -> None:
    assert report["rows with a backup"]["step"] == ROUNDS
    assert report["rows with a backup"]["moved"] > 1e-4


def test_the_next_round_waits_until_the_rows_of_a_checkpoint_are_written(report: dict[str, Any]) -> None:
    case = report["cases"][SAVED]
    assert case["at the save"] < 2e-5
    assert case["after it"] > 1e-4


def test_a_server_may_hold_nothing_but_rows_that_are_not_trained_and_the_chief_holds_none(report: dict[str, Any]) -> None:
    assert report["given rows"] == [5, False, True]


def test_a_norm_of_rows_on_several_servers_is_refused(report: dict[str, Any]) -> None:
    assert report["norm of rows"].startswith(
        "train.gradients.clip_global_norm is not possible beside embedding layers on synchronous parameter servers (shared, other, wide)"
    )


def test_progress_shows_the_slow_worker(report: dict[str, Any]) -> None:
    speeds = report["workers one slower"]
    assert set(speeds) == {f"worker-{i}" for i in range(WORKERS)}
    assert speeds["worker-2"] < min(speed for task, speed in speeds.items() if task != "worker-2")


def test_progress_shows_the_wait_for_peers(report: dict[str, Any]) -> None:
    """Nine tenths of a round, for all but the slow worker."""
    waits = report["peer_wait"]
    assert set(waits) == {f"worker-{i}" for i in range(WORKERS)}
    assert waits["worker-2"] < 0.3
    assert all(0.4 < wait <= 1 for task, wait in waits.items() if task != "worker-2"), waits


def test_progress_shows_the_wait_for_input(report: dict[str, Any]) -> None:
    """All of a round on the worker with the slow reader, a tenth on the others."""
    waits = report["input_wait"]
    assert set(waits) == {f"worker-{i}" for i in range(WORKERS)}
    assert waits["worker-2"] > 0.4
    assert all(0 < wait < waits["worker-2"] / 2 for task, wait in waits.items() if task != "worker-2"), waits


def test_a_worker_that_every_round_needs_may_be_killed(report: dict[str, Any]) -> None:
    assert report["killed step"] == 40 + 120


def test_a_backup_may_be_killed_and_takes_part_again_while_rounds_continue(report: dict[str, Any]) -> None:
    assert report["rounds without it"] == 20
    assert report["backup is back"]


def test_servers_that_differ_about_the_first_gradients_block_no_worker(report: dict[str, Any]) -> None:
    assert report["differing"] == {"done": DIFFERING, "steps": 40}
    # A round of two of three workers drops at most one: those that a server has only answered do not count, whichever server it is.
    first, second = report["dropped differing"]
    assert first <= 25
    assert second <= 20


def test_a_stop_ends_a_call_and_another_session_takes_the_other_steps(report: dict[str, Any]) -> None:
    stopped = report["stopped"]
    assert stopped["stop"]
    assert 1 <= stopped["step"] <= 40
    assert stopped["after"] < 30
    assert report["rest step"] == 40
