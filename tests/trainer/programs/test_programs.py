"""The built-in programs and the documented one on three real workers: their results, the device of each operation, and fallbacks."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.trainer.engine.drivers import run_driver
from tests.trainer.programs.drive_programs import PATTERNS, STRIP_GENERATIONS, WORKERS
from trainer.programs import rle
from trainer.programs.map_reduce import slice_sizes

pytestmark = pytest.mark.slow  # the driver starts four processes

DRIVER = Path(__file__).with_name("drive_programs.py")
PAGE = (Path(__file__).parents[3] / "docs" / "programs.md").read_text(encoding="utf-8")

Report = dict[str, Any]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def report(scratch: Path) -> Report:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(example.splitlines()) <= 15
    (scratch / "example.txt").write_text(example)
    return run_driver(DRIVER, scratch)


def placements(result: Report) -> dict[str, tuple[str, str]]:
    """Return the task and the device on which each named operation ran."""
    return {name: (task, device) for _, name, _, task, device, _ in result["rows"] if name}


def test_the_cluster_has_its_tasks_and_their_devices_in_order(report: Report) -> None:
    assert list(report["devices"]) == ["chief", *(f"worker-{i}" for i in range(WORKERS))]
    assert report["devices"]["worker-1"][0] == "/job:worker/replica:0/task:1/device:CPU:0"


def test_placement_puts_each_operation_on_its_task(report: Report) -> None:
    result = report["placement"]
    assert result["metrics"] == {"y1": 302, "y2": -64, "y": 238}
    assert placements(result) == {"y1": ("worker-0", "cpu:0"), "y2": ("worker-1", "cpu:0"), "y": ("chief", "cpu:0")}
    assert ["AddV2", "y1", "1", "worker-0", "cpu:0", ""] in result["rows"]


def test_placement_uses_one_task_if_there_is_only_one(report: Report) -> None:
    result = report["placement_on_one"]
    assert result["metrics"]["y"] == 241
    assert placements(result)["y2"] == ("worker-0", "cpu:0")


@pytest.mark.parametrize("slices", ["unequal", "speed"])
def test_map_reduce_on_every_task(report: Report, slices: str) -> None:
    result = report[f"map_reduce_{slices}"]
    numbers = np.random.default_rng(0).random(10_000_000, dtype=np.float32)
    metrics = result["metrics"]
    assert metrics["sum"] == pytest.approx(float(numbers.sum(dtype=np.float64)), rel=1e-6)
    assert metrics["mean"] == pytest.approx(metrics["numpy_mean"], rel=1e-6)
    assert metrics["relative_error"] < 1e-6
    sizes = [int(line.split()[1].replace(",", "")) for line in result["files"]["slices.txt"].splitlines()[1:]]
    assert sum(sizes) == 10_000_000
    assert len(set(sizes)) == WORKERS
    means = {(task, device) for operation, name, _, task, device, _ in result["rows"] if name == "mean" and operation == "Mean"}
    assert means == {(f"worker-{i}", "cpu:0") for i in range(WORKERS)}


def test_slices_follow_the_weights() -> None:
    assert slice_sizes(10_000_000, [1, 2, 3]) == [1_666_667, 3_333_333, 5_000_000]
    assert slice_sizes(600, [50.0, 100.0, 150.0]) == [100, 200, 300]
    assert sum(slice_sizes(7, [0.1] * 5)) == 7


def test_map_reduce_with_fewer_numbers_than_tasks(report: Report) -> None:
    assert report["map_reduce_few"]["metrics"]["relative_error"] < 1e-6


def test_matmul_on_every_task(report: Report) -> None:
    result = report["matmul"]
    metrics = result["metrics"]
    assert metrics["relative_error"] < 1e-5
    matrix = np.random.default_rng(0).random((1500, 1500), dtype=np.float32).astype(np.float64)
    for task in ("chief", "worker-0", "worker-1", "worker-2"):
        device = f"{task}/cpu:0"
        for part in ("gflops", "compute_s", "transfer_s"):
            assert metrics[f"{device}/{part}"] > 0
    assert metrics["sum"] == pytest.approx((matrix @ matrix.T).sum(), rel=1e-5)
    products = {task for operation, name, _, task, _, _ in result["rows"] if name == "product"}
    assert products == {"chief", "worker-0", "worker-1", "worker-2"}
    assert "1500x1500" in result["files"]["matmul.txt"]
    # Each transfer is made every time, in both directions: once before the measurement, and three times in it.
    assert result["received"] > WORKERS * 2 * 4 * matrix.astype(np.float32).nbytes


def test_matmul_falls_back_if_a_device_is_missing(report: Report) -> None:
    result = report["matmul_fallback"]
    assert result["notices"] == [
        "chief has no gpu:1, it has cpu:0: its operations run on its CPU",
        "worker-1 has no gpu:0, it has cpu:0: its operations run on its CPU",
    ]
    assert {name.rpartition("/")[0] for name in result["metrics"] if name.endswith("compute_s")} == {
        "chief/cpu:0",
        "worker-1/cpu:0",
        "worker-2/cpu:0",
    }


def test_an_operation_that_ran_elsewhere_is_reported(report: Report) -> None:
    result = report["colocated"]
    assert result["metrics"]["total"] == 3
    assert ["AssignAddVariableOp", "", "1", "worker-0", "cpu:0", "worker-1/cpu:0"] in result["rows"]
    assert result["elsewhere"] == [
        "AssignAddVariableOp ran on worker-0/cpu:0 and not on worker-1/cpu:0, which cannot run it or lacks its inputs"
    ]
    assert report["placement"]["elsewhere"] == []


@pytest.mark.parametrize("pattern, period", [("block", 1), ("pulsar", 3), ("glider", 4 * 9), ("nothing", 1)])
def test_life_finds_the_period_of_a_pattern(report: Report, scratch: Path, pattern: str, period: int) -> None:
    result = report[f"life_{pattern}"]
    assert (result["metrics"]["period"], result["metrics"]["since"]) == (period, 0)
    assert f"period {period}" in result["notices"][0]
    with Image.open(scratch / f"{pattern}.gif") as film:
        _, height, width = PATTERNS[pattern]
        assert film.size == (4 * width, 4 * height)


def test_strips_give_the_board_of_one_process(report: Report) -> None:
    board = (np.random.default_rng(5).random((13, 17)) < 0.4).astype(np.uint8)
    seen: list[bytes] = []
    while board.tobytes() not in seen and len(seen) < STRIP_GENERATIONS:
        seen.append(board.tobytes())
        total = sum(np.roll(board, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1))
        board = ((total == 3) | ((total == 4) & (board == 1))).astype(np.uint8)
    assert len(seen) > 10
    for tasks in (1, 2, 3):
        result = report[f"strips_{tasks}"]
        assert result["metrics"]["generations"] == len(seen)
        assert result["metrics"]["alive"] == board.sum()
        assert np.array_equal(rle.read(result["files"]["last.rle"], "last.rle"), board)
        ran = {task for operation, _, _, task, _, _ in result["rows"] if operation.startswith("function")}
        assert ran == {f"worker-{i}" for i in range(tasks)}


def test_life_without_a_repeated_board_has_no_period(report: Report) -> None:
    result = report["unfinished"]
    assert "period" not in result["metrics"]
    assert "no state came again within 3 generations" in result["notices"][0]


def test_the_device_log_does_not_wait_for_calls_of_functions(report: Report) -> None:
    result = report["together"]
    assert result["metrics"]["part"] < 0.5
    calls = {row[3]: row[2] for row in result["rows"] if row[0] == "function powers"}
    assert calls == {f"worker-{i}": "2" for i in range(WORKERS)}


def test_the_documented_program_runs_on_every_task(report: Report) -> None:
    result = report["documented"]
    assert result["metrics"]["mean"] == pytest.approx(0.5, abs=0.01)
    assert 0 < result["metrics"]["spread"] < 0.02
    assert {task for operation, name, _, task, _, _ in result["rows"] if name == "mean"} == {f"worker-{i}" for i in range(WORKERS)}
