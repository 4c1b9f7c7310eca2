"""Runs every spec in examples/, here or in test_larger_examples.py, as a user does: in the foreground, to its last step and its expected result.

Examples that would take too long run with fewer steps, smaller batches or fewer filters, set as a user would.
"""

import json
import re
from pathlib import Path

import pytest

from tests.integration import test_larger_examples
from tests.integration.example_runs import Bounds, assert_recorded, assert_trained, up
from tests.integration.running import EXAMPLES, Run
from tests.integration.test_export import assert_best_is_exported
from tests.integration.test_tensorboard import assert_written_by_servers
from tests.trainer.exported import assert_export_matches_metrics
from tests.trainer.tensorboard_reader import read_events
from trainer.workloads.mnist_mlp import MnistMlp

pytestmark = pytest.mark.takes_minutes  # the slow ones

ACCURACY = 0.97
PROGRAM_ACCURACY = re.compile(r"test accuracy (\d\.\d+)")

# Of the slow ones: what is set, and the bounds of each metric at the end.
DIGITS = {"accuracy": (ACCURACY, 1.0)}
LINE = {"w": (1.75, 2.25), "b": (-0.1, 0.1)}
SHORT = ("train.steps=1500", "train.params.learning_rate=0.005")
FEWER_STEPS = ("train.steps=1000",)  # of 2,000, which `make demo` takes
HALF = ("train.steps=500",)
FEWER_ROUNDS = ("train.steps=400",)
# test_tensorboard.py checks evaluations and summaries every 10 steps.
RARELY = ("train.evaluate.every_steps=100", "train.summaries.every_steps=100")
SHORT_PLAY = ("train.steps=1152", "train.params.random_steps=1000", "train.summaries.every_steps=500")
SELDOM_EVALUATED = ("train.evaluate.every_steps=15000", "train.summaries.every_steps=5000")
TRAINED: dict[str, tuple[tuple[str, ...], Bounds]] = {
    "mnist-single": (RARELY, DIGITS),
    "mnist-mirrored": (HALF, DIGITS),
    "mnist-multiworker": (HALF, DIGITS),
    "mnist-sync": (FEWER_ROUNDS, DIGITS),
    "linear-regression-single": (("train.steps=20000",), LINE),
    "linear-regression-mirrored": (SHORT, LINE),
    "linear-regression-multiworker": (SHORT, LINE),
    "linear-regression-ps": (SHORT, LINE),
    "custom-keras": (("train.evaluate.every_steps=200",), DIGITS),
    "custom-model-fn": (("train.steps=600",), DIGITS),
    "custom-workload": (("train.steps=200",), DIGITS),
    "gridworld-dqn": (SHORT_PLAY, {"reward": (-10, 40), "loss": (0, 100)}),  # only that it runs: learning takes an hour
    "gridworld-dqn-small": (SELDOM_EVALUATED, {"reward": (6, 40), "loss": (0, 100)}),  # random play gets 2
}
COMMANDS = ("custom-command", "custom-ps")

# Programs with manual placement: the bounds of each metric at the end, and the files of results.
PROGRAMS: dict[str, tuple[Bounds, set[str]]] = {
    "placement": ({"y": (238, 238), "y1": (302, 302), "y2": (-64, -64)}, set()),
    "map-reduce": ({"mean": (0.499, 0.501), "sum": (4.99e6, 5.01e6), "relative_error": (0, 1e-6)}, {"slices.txt"}),
    "matmul": (
        {"relative_error": (0, 1e-5), "worker-0/cpu:0/gflops": (0.01, 1e5), "worker-1/cpu:0/transfer_s": (1e-6, 60)},
        {"matmul.txt"},
    ),
    "life": ({"period": (30, 30), "since": (0, 30)}, {"life.gif", "last.rle"}),
}


def test_every_example_is_run() -> None:
    elsewhere = ["keras-fit"]  # test_keras_fit.py
    here = ["mnist-ps", "mnist-evaluator", *TRAINED, *test_larger_examples.TRAINED, *COMMANDS, *PROGRAMS]
    assert sorted(file.stem for file in EXAMPLES.glob("*.yaml")) == sorted([*here, *elsewhere])


def test_every_example_is_in_the_readme() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    assert [file.name for file in EXAMPLES.glob("*.yaml") if f"(examples/{file.name})" not in readme] == []


def test_mnist_ps(tmp_path: Path) -> None:
    example = up("mnist-ps", tmp_path, FEWER_STEPS)
    assert_trained(example, DIGITS, FEWER_STEPS)
    # Both workers took part, and each reported its steps.
    assert {event["task"] for event in example.events("progress") if "local_step" in event} == {"worker-0", "worker-1"}


@pytest.mark.slow
def test_mnist_evaluator(tmp_path: Path) -> None:
    example = up("mnist-evaluator", tmp_path, FEWER_STEPS)
    assert_trained(example, DIGITS, FEWER_STEPS)
    evaluated = [event for event in example.events("evaluated") if event["task"] == "evaluator"]
    assert evaluated[-1]["step"] == example.summary["steps"]
    assert {event["step"] for event in evaluated} <= {event["step"] for event in example.events("checkpoint")}
    best = assert_export_matches_metrics(example.directory, MnistMlp({}, "synthetic", 0), tmp_path)
    assert (best["metric"], best["value"]) == ("loss", min(event["metrics"]["loss"] for event in evaluated))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TRAINED if name != "gridworld-dqn-small"])
def test_other_examples_that_train(name: str, tmp_path: Path) -> None:
    changes, expected = TRAINED[name]
    example = up(name, tmp_path, changes)
    assert_trained(example, expected, changes)
    if name == "custom-keras":
        assert_best_is_exported(Run(name, example.directory.parent), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist-mirrored", "mnist-multiworker", "mnist-ps", "mnist-sync"])
def test_the_network_with_dropout_trains_under_every_strategy(name: str, tmp_path: Path) -> None:
    """With 200 of its 500 units each reaches 98.4 to 99.0 % after 300 steps; mnist-ps has all units, and its two workers take 600 steps together."""
    units, steps, rate, profile = (500, 600, 0.003, 300) if name == "mnist-ps" else (200, 300, 0.005, 0)
    every = 100 if name == "mnist-ps" else 300
    intervals = (
        f"train.evaluate.every_steps={every}",
        f"train.summaries.every_steps={every}",
        f"train.summaries.profile_every_steps={profile}",
    )
    params = (f"train.params.hidden_units={units}", f"train.params.learning_rate={rate}")
    network = ("train.workload=mnist", *params, f"train.steps={steps}")
    changes = (*network, *intervals, f"train.checkpoint.every_steps={steps}")
    example = up(name, tmp_path, changes)
    assert_trained(example, DIGITS, changes)
    # A scalar that mnist_mlp does not write.
    assert read_events(example.directory / "logs" / "train").scalars("dropout_keep_probability")
    if name == "mnist-ps":
        assert_written_by_servers(Run(name, example.directory.parent), example.summary["steps"], every)


@pytest.mark.slow
def test_the_small_agent_learns_from_its_workers_and_they_play_what_it_learned(tmp_path: Path) -> None:
    changes, expected = TRAINED["gridworld-dqn-small"]
    example = up("gridworld-dqn-small", tmp_path, changes)
    assert_trained(example, expected, changes)
    # The workers' rewards, of which a part is from random play: the workers have received what the chief learned.
    played = [line["metrics"]["reward"] for line in example.events("progress") if line["task"] == "chief" and "local_step" not in line]
    assert played[-1] >= 6


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "placement" else pytest.mark.slow) for name in PROGRAMS])
def test_programs_with_manual_placement(name: str, tmp_path: Path) -> None:
    example = up(name, tmp_path)
    assert_recorded(example)
    expected, files = PROGRAMS[name]
    for metric, (low, high) in expected.items():
        assert low <= example.summary["metrics"][metric] <= high, example.summary["metrics"]
    record = json.loads((example.directory / "run.json").read_text())
    assert (record["state"], record["metrics"]) == ("succeeded", example.summary["metrics"])
    assert {path.name for path in (example.directory / "results").iterdir()} == {"devices.txt", *files}
    assert list((example.directory / "logs" / "train").glob("events.out.tfevents.*"))
    # The table of tasks, devices and operations, also in the chief's log: each worker took part.
    table = (example.directory / "results" / "devices.txt").read_text()
    workers = [f"worker-{i}" for i in range(example.spec["roles"]["worker"]["replicas"])]
    assert [worker for worker in workers if re.search(rf"\b{worker}\b +cpu:0\b", table)] == workers
    assert set(table.splitlines()) <= {line["text"] for line in example.events("output") if line["task"] == "chief"}
    if name == "life":
        assert read_events(example.directory / "logs" / "train").tags("images") == {"board"}
    if name == "matmul":
        # Not compared as a whole: on a busy machine a task also reports a peer that was slow.
        notices = [line["message"] for line in example.events("notice")]
        assert notices.count("worker-1 has no gpu:0, it has cpu:0: its operations run on its CPU") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_own_programs(name: str, tmp_path: Path) -> None:
    example = up(name, tmp_path)
    assert_recorded(example)
    accuracies = [match[1] for line in example.events("output") if (match := PROGRAM_ACCURACY.search(line["text"]))]
    assert len(accuracies) == 1  # only of the chief
    assert float(accuracies[0]) >= ACCURACY
    assert list((example.directory / "checkpoints").iterdir())
