"""Every spec in examples/ runs as a user runs it: in the foreground, to its last step, to what it is there for.

Where an example is made for more time than there is here, it runs with fewer steps, smaller batches or fewer filters, set as a
user would.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import forked
from tests.integration import leftovers
from tests.integration.running import EXAMPLES, Run
from tests.integration.test_tensorboard import assert_written_by_servers
from tests.trainer.exported import assert_export_is_what_it_says
from tests.trainer.tensorboard_reader import read_events
from trainer.workloads.mnist_mlp import MnistMlp

ACCURACY = 0.97
OWN_PROGRAM = re.compile(r"test accuracy (\d\.\d+)")

# The slow ones: what is set, and between which bounds each metric ends.
DIGITS = {"accuracy": (ACCURACY, 1.0)}
PICTURES = {"accuracy": (0.9, 1.0)}
LINE = {"w": (1.75, 2.25), "b": (-0.1, 0.1)}
# At a higher rate training falls back for some steps now and then, and where depends on the last bits of this machine's sums.
SMALL = ("train.steps=700", "train.batch_size=16", "train.params.filters=16", "train.params.learning_rate=0.03")
CLICKS = ("train.steps=500", "train.params.rows=200", "train.embeddings.min_rows=200", "train.params.eval_examples=2000")
MORE_CLICKS = (*CLICKS, "train.params.eval_examples=20000")
SHORT = ("train.steps=1500", "train.params.learning_rate=0.005")
FEWER = ("train.steps=1000",)  # of 2,000, which `make demo` takes
FEW_ROUNDS = ("train.steps=400",)
SELDOM = ("train.evaluate.every_steps=100", "train.summaries.every_steps=100")  # test_tensorboard.py looks at what it does every 10 steps
PLAYED = ("train.steps=1280", "train.params.random_steps=1000", "train.summaries.every_steps=500")
TRAINED: dict[str, tuple[tuple[str, ...], dict[str, tuple[float, float]]]] = {
    "mnist-single": (SELDOM, DIGITS),
    "mnist-mirrored": ((), DIGITS),
    "mnist-multiworker": ((), DIGITS),
    "mnist-sync": (FEW_ROUNDS, DIGITS),
    "cifar10-single": (SMALL, PICTURES),
    "cifar10-mirrored": (SMALL, PICTURES),
    "cifar10-multiworker": (SMALL, PICTURES),
    # At the rate above, training on servers falls back to its beginning now and then, if it only takes more steps; old
    # gradients need those, the more the busier the machine.
    "cifar10-ps": ((*SMALL, "train.steps=1500", "train.params.learning_rate=0.02"), PICTURES),
    "linear-regression-single": (("train.steps=20000",), LINE),
    "linear-regression-mirrored": (SHORT, LINE),
    "linear-regression-multiworker": (SHORT, LINE),
    "linear-regression-ps": (SHORT, LINE),
    "click-through-ps": (MORE_CLICKS, {"auc": (0.8, 0.9), "loss": (0.3, 0.6)}),
    "click-through-single": (MORE_CLICKS, {"auc": (0.8, 0.9), "loss": (0.3, 0.6)}),
    "click-through-multiworker": ((*CLICKS, "train.steps=200"), {"auc": (0.8, 0.9), "loss": (0.3, 0.6)}),
    "click-through-sync": ((*CLICKS, "train.steps=200"), {"auc": (0.8, 0.9), "loss": (0.3, 0.6)}),
    "custom-keras": ((), DIGITS),
    "custom-model-fn": ((), DIGITS),
    "custom-workload": ((), DIGITS),
    "gridworld-dqn": (PLAYED, {"reward": (-10, 40), "loss": (0, 100)}),  # that it runs: what it learns takes an hour
    "gridworld-dqn-small": ((), {"reward": (6, 40), "loss": (0, 100)}),  # random play gets 2
}
COMPARED = ("click-through-single", "click-through-ps")
COMMANDS = ("custom-command", "custom-ps")

# Programs placed by hand: between which bounds each metric ends, and which files the results are.
PROGRAMS: dict[str, tuple[dict[str, tuple[float, float]], set[str]]] = {
    "placement": ({"y": (238, 238), "y1": (302, 302), "y2": (-64, -64)}, set()),
    "map-reduce": ({"mean": (0.499, 0.501), "sum": (4.99e6, 5.01e6), "relative_error": (0, 1e-6)}, {"slices.txt"}),
    "matmul": (
        {"relative_error": (0, 1e-5), "worker-0/cpu:0/gflops": (0.01, 1e5), "worker-1/cpu:0/transfer_s": (1e-6, 60)},
        {"matmul.txt"},
    ),
    "life": ({"period": (30, 30), "since": (0, 30)}, {"life.gif", "last.rle"}),
}


@dataclass(frozen=True)
class Done:
    """What `launcher up --json` of an example wrote, and where."""

    spec: dict[str, Any]
    directory: Path
    lines: list[dict[str, Any]]

    @property
    def summary(self) -> dict[str, Any]:
        assert self.lines[-1]["event"] == "summary"
        return self.lines[-1]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == kind]


def up(name: str, tmp_path: Path, changes: tuple[str, ...] = ()) -> Done:
    """Run an example, with `changes` set, from the repository's root to its end."""
    file, runs = EXAMPLES / f"{name}.yaml", tmp_path / "runs"
    settings = [word for change in changes for word in ("--set", change)]
    try:
        done = forked.launcher("up", str(file), "--json", "--runs", str(runs), *settings, timeout=300, engine=forked.TENSORFLOW)
    finally:
        leftovers.assert_none(runs / name)
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout[-6000:]}\n{done.stderr}"
    return Done(yaml.safe_load(file.read_text()), runs / name, [json.loads(line) for line in done.stdout.splitlines()])


def assert_kept(done: Done) -> None:
    """Check what is left of every run: a summary without restarts, and a log of each task, its lines dated."""
    assert done.summary["name"] == done.spec["name"] == done.directory.name
    assert not done.of("stalled")
    assert (done.summary["state"], done.summary["exit_code"], done.summary["restarts"]) == ("succeeded", 0, {})
    assert done.summary["run_dir"] == str(done.directory)
    roles = {role: settings.get("replicas") for role, settings in done.spec.get("roles", {"chief": {}}).items()}
    tasks = {
        name
        for role, count in roles.items()
        for name in ([role] if role in {"chief", "evaluator"} else [f"{role}-{i}" for i in range(count or 1)])
    }
    logs = {path.stem: path.read_text() for path in done.directory.glob("launcher/tasks/*.log")}
    assert set(logs) == tasks
    for task, text in logs.items():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", text), f"{task}: {text[:80]}"


def assert_trained(done: Done, expected: dict[str, tuple[float, float]], changes: tuple[str, ...] = ()) -> None:
    """Check what the trainer promises: every step, the metrics, checkpoints, run.json, TensorBoard's logs."""
    assert_kept(done)
    changed = dict(change.removeprefix("train.").split("=") for change in changes)
    summary, steps = done.summary, int(changed.get("steps", done.spec["train"]["steps"]))
    assert (summary["step"], summary["steps"], summary["checkpoint_step"]) == (steps, steps, steps)
    for name, (low, high) in expected.items():
        assert low <= summary["metrics"][name] <= high, summary["metrics"]
    assert done.of("evaluated")[-1]["step"] == steps
    assert Path(f"{summary['checkpoint']}.index").is_file()
    assert Path(summary["checkpoint"]).parent == done.directory / "checkpoints"
    record = json.loads((done.directory / "run.json").read_text())
    assert {key: record[key] for key in ("name", "state", "step", "steps", "metrics")} == {
        "name": done.spec["name"],
        "state": "succeeded",
        "step": steps,
        "steps": steps,
        "metrics": summary["metrics"],
    }
    for logs in ("train", "eval"):
        assert list((done.directory / "logs" / logs).glob("events.out.tfevents.*"))


def test_every_example_is_run_here() -> None:
    elsewhere = ["keras-fit"]  # test_keras_fit.py
    here = ["mnist-ps", "mnist-evaluator", *TRAINED, *COMMANDS, *PROGRAMS]
    assert sorted(file.stem for file in EXAMPLES.glob("*.yaml")) == sorted([*here, *elsewhere])


@pytest.mark.timeout(330)
def test_mnist_ps(tmp_path: Path) -> None:
    done = up("mnist-ps", tmp_path, FEWER)
    assert_trained(done, DIGITS, FEWER)
    # Both workers had their part in it, and say how far each came.
    assert {event["task"] for event in done.of("progress") if "local_step" in event} == {"worker-0", "worker-1"}


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_mnist_evaluator(tmp_path: Path) -> None:
    done = up("mnist-evaluator", tmp_path, FEWER)
    assert_trained(done, DIGITS, FEWER)
    evaluated = [event for event in done.of("evaluated") if event["task"] == "evaluator"]
    assert evaluated[-1]["step"] == done.summary["steps"]
    assert {event["step"] for event in evaluated} <= {event["step"] for event in done.of("checkpoint")}
    best = assert_export_is_what_it_says(done.directory, MnistMlp({}, "synthetic", 0), tmp_path)
    assert (best["metric"], best["value"]) == ("loss", min(event["metrics"]["loss"] for event in evaluated))


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize("name", [name for name in TRAINED if name not in {"gridworld-dqn-small", *COMPARED}])
def test_other_examples_that_train(name: str, tmp_path: Path) -> None:
    changes, expected = TRAINED[name]
    assert_trained(up(name, tmp_path, changes), expected, changes)


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_asynchronous_servers_learn_clicks_as_well_as_one_process_from_as_many_examples(tmp_path: Path) -> None:
    """Of eight seeds, four of them beside some forty busy processes, the AUC differed by 0.0003 in the median, and by 0.0012 at most."""
    auc = {}
    for name in COMPARED:
        changes, expected = TRAINED[name]
        done = up(name, tmp_path, changes)
        assert_trained(done, expected, changes)
        auc[name] = done.summary["metrics"]["auc"]
    one_process, servers = auc.values()
    assert abs(servers - one_process) < 0.005, auc


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize("name", ["mnist-mirrored", "mnist-multiworker", "mnist-ps", "mnist-sync"])
def test_the_network_with_dropout_trains_on_every_strategy_too(name: str, tmp_path: Path) -> None:
    """Three examples give 98.5 % after 300 steps, mnist-ps after 600 of its two workers together."""
    steps = 600 if name == "mnist-ps" else 300
    rate = ("train.params.learning_rate=0.003", f"train.steps={steps}")
    summaries = ("train.summaries.every_steps=100", "train.summaries.profile_every_steps=300")
    changes = ("train.workload=mnist", "train.evaluate.every_steps=100", *summaries, *rate)
    done = up(name, tmp_path, changes)
    assert_trained(done, DIGITS, changes)
    # What it writes beyond mnist_mlp's.
    assert read_events(done.directory / "logs" / "train").scalars("dropout_keep_probability")
    if name == "mnist-ps":
        assert_written_by_servers(Run(name, done.directory.parent), done.summary["steps"], 100)


@pytest.mark.slow
@pytest.mark.timeout(330)
def test_the_small_agent_learns_from_its_workers_and_they_from_it(tmp_path: Path) -> None:
    changes, expected = TRAINED["gridworld-dqn-small"]
    done = up("gridworld-dqn-small", tmp_path, changes)
    assert_trained(done, expected, changes)
    assert done.summary["seconds"] < 240  # what the README's reader is promised on two cores
    # What the workers get as they play, a part of it at random: they have been given what the chief learned.
    played = [line["metrics"]["reward"] for line in done.of("progress") if line["task"] == "chief" and "local_step" not in line]
    assert played[-1] >= 6


@pytest.mark.timeout(330)
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "placement" else pytest.mark.slow) for name in PROGRAMS])
def test_programs_placed_by_hand(name: str, tmp_path: Path) -> None:
    done = up(name, tmp_path)
    assert_kept(done)
    expected, files = PROGRAMS[name]
    for metric, (low, high) in expected.items():
        assert low <= done.summary["metrics"][metric] <= high, done.summary["metrics"]
    record = json.loads((done.directory / "run.json").read_text())
    assert (record["state"], record["metrics"]) == ("succeeded", done.summary["metrics"])
    assert {path.name for path in (done.directory / "results").iterdir()} == {"devices.txt", *files}
    assert list((done.directory / "logs" / "train").glob("events.out.tfevents.*"))
    # The table of which task and device ran what, also in the chief's log: each worker had its part.
    table = (done.directory / "results" / "devices.txt").read_text()
    workers = [f"worker-{i}" for i in range(done.spec["roles"]["worker"]["replicas"])]
    assert [worker for worker in workers if re.search(rf"\b{worker}\b +cpu:0\b", table)] == workers
    assert set(table.splitlines()) <= {line["text"] for line in done.of("output") if line["task"] == "chief"}
    if name == "life":
        assert read_events(done.directory / "logs" / "train").tags("images") == {"board"}
    if name == "matmul":
        # Not compared as a whole: on a busy machine a task also tells of a peer that took its time.
        told = [line["message"] for line in done.of("notice")]
        assert told.count("worker-1 has no gpu:0, it has cpu:0: its operations run on its CPU") == 1


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize("name", COMMANDS)
def test_own_programs(name: str, tmp_path: Path) -> None:
    done = up(name, tmp_path)
    assert_kept(done)
    said = [found[1] for line in done.of("output") if (found := OWN_PROGRAM.search(line["text"]))]
    assert len(said) == 1  # the chief alone
    assert float(said[0]) >= ACCURACY
    assert list((done.directory / "checkpoints").iterdir())
