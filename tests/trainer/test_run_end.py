"""The trainer's parents end the tasks of a user's program with their run: no launcher, no engine, no TensorFlow."""

import contextlib
import json
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port
from tests.trainer.clocked import FakeClockLoop
from tests.trainer.conftest import Ports, TrainerProcess, Trainers
from trainer.run_end import FAILED, RUNNING, SUCCEEDED, RunEndRules, RunEndServer, RunEndStatus, RunEndTask, ask, run_end_task
from trainer.tf_config import TaskConfig, parse

pytestmark = pytest.mark.takes_minutes  # mostly waiting, while other tests compute

SLEEPS = "exec sleep 3600"
CLUSTER = {"chief": 1, "worker": 1, "ps": 1}

TWO_WORKERS = {"chief": 1, "worker": 2, "ps": 1}
LED_BY_WORKER = {"worker": 2, "ps": 1}
CHIEF_AND_WORKER = {"chief": 1, "worker": 1}
CHIEF_AND_PS = {"chief": 1, "ps": 1}

Start = Callable[..., TrainerProcess]


@pytest.fixture
def start(trainers: Trainers, ports: Ports, tmp_path: Path) -> Start:
    """Return a function that starts a task of one cluster, with a shell script as its program."""
    port = free_port()
    addresses: defaultdict[tuple[str, int], str] = defaultdict(ports.address)

    def start_task(
        name: str,
        script: str,
        *,
        sizes: dict[str, int] = CLUSTER,
        strategy: str = "parameter_server",
        evaluator: bool = False,
        worker_grace: float = 0.5,
        unsupervised: list[str] | None = None,
        **rules: Any,
    ) -> TrainerProcess:
        role, _, index = name.partition("-")
        cluster = {role: [addresses[role, place] for place in range(count)] for role, count in sizes.items()}
        timeouts: dict[str, Any] = {key: rules.pop(key) for key in ("start_timeout", "orphan_timeout") if key in rules}
        settings: dict[str, Any] = {
            "run": rules.pop("run", "r"),
            "run_dir": str(tmp_path / "run"),
            "scratch_dir": str(tmp_path),
            "strategy": strategy,
            "max_restarts": 0,
            "has_evaluator": evaluator,
            "unsupervised": unsupervised,
            "ending": {"port": port, "graces": {"worker": worker_grace, "evaluator": 0.5}, **rules},
            **timeouts,
        }
        config = {"cluster": cluster, "task": {"type": role, "index": int(index or 0)}}
        env = {"TF_CONFIG": json.dumps(config), "TRAINER_SETTINGS": json.dumps(settings), "RUN_DIR": settings["run_dir"]}
        return trainers.trainer("--", "sh", "-c", script, env=env)

    return start_task


def test_all_end_when_the_chief_is_done(start: Start) -> None:
    others = [start(name, SLEEPS, evaluator=True) for name in ("worker-0", "ps-0", "evaluator")]
    ps = others[1]
    chief = start("chief", "sleep 1", evaluator=True)
    assert [chief.code(), *(other.code() for other in others)] == [0] * 4
    assert ps.event("notice")["message"] == "the run has succeeded; this task is ended"
    assert ps.event("done")


def test_a_chief_does_not_wait_for_tasks_without_a_parent(start: Start) -> None:
    ps = start("ps-0", SLEEPS, unsupervised=["worker"])
    chief = start("chief", "sleep 1", unsupervised=["worker"])
    assert (chief.code(45.0), ps.code()) == (0, 0)  # it would wait for a minute


def test_a_program_that_ignores_sigterm_is_killed_and_counts_as_done(start: Start) -> None:
    ps = start("ps-0", "trap '' TERM; echo begun; while :; do sleep 1; done", sizes=CHIEF_AND_PS)
    ps.line("begun")
    assert start("chief", "true", sizes=CHIEF_AND_PS).code() == 0
    assert ps.code() == 0


def test_workers_of_parameter_servers_may_end_by_themselves(start: Start) -> None:
    worker = start("worker-0", "trap 'echo terminated' TERM; echo begun; sleep 3; echo written", sizes=CHIEF_AND_WORKER, worker_grace=60)
    worker.line("begun")
    assert start("chief", "true", sizes=CHIEF_AND_WORKER).code() == 0
    assert worker.code() == 0
    assert "written" in worker.lines
    assert "terminated" not in worker.lines


def test_workers_of_an_all_reduce_may_end_by_themselves(start: Start) -> None:
    worker = start(
        "worker-0", "echo begun; sleep 3; echo written", sizes=CHIEF_AND_WORKER, strategy="multi_worker_mirrored", worker_grace=30
    )
    worker.line("begun")
    assert start("chief", "true", sizes=CHIEF_AND_WORKER, strategy="multi_worker_mirrored").code() == 0
    assert (worker.code(), worker.lines.count("written")) == (0, 1)


def test_a_worker_that_fails_because_its_chief_is_done_counts_as_done(start: Start) -> None:
    """It fails before it learns of the end, as a program does that has lost its peer."""
    worker = start("worker-0", "until [ -e $RUN_DIR/over ]; do sleep 0.1; done; sleep 0.3; exit 1", sizes=CHIEF_AND_WORKER, worker_grace=60)
    worker.event("started")
    chief = start("chief", "sleep 1; touch $RUN_DIR/over", sizes=CHIEF_AND_WORKER)
    assert (worker.code(), chief.code()) == (0, 0)


@pytest.mark.parametrize("script, code", [("exit 1", 1), ("exit 2", 2)])
def test_a_final_failure_of_the_chief_fails_the_run(start: Start, script: str, code: int) -> None:
    others = [start(name, SLEEPS) for name in ("worker-0", "ps-0")]
    chief = start("chief", f"sleep 1; {script}")
    assert chief.code() == code
    for other in others:
        assert other.code() == 75
        assert other.event("failed")["cause"] == "chief has failed"


@pytest.mark.parametrize(
    "success, chief, other, code",
    [
        pytest.param("chief", "exit 1", SLEEPS, 75, id="by its chief"),
        pytest.param("all_workers", "true", "exit 2", 2, id="by a required worker"),
    ],
)
def test_a_task_that_starts_after_its_run_has_failed_fails_too(start: Start, success: str, chief: str, other: str, code: int) -> None:
    """A pod may wait for its volume, or for a node, longer than another task needs to fail."""
    rules: dict[str, Any] = {"success": success, "sizes": {"chief": 1, "worker": 2}}
    worker = start("worker-0", other, **rules)
    leader = start("chief", chief, **rules)
    assert worker.code() == code
    time.sleep(6)  # a chief whose tasks had all asked would have exited
    late = start("worker-1", SLEEPS, **rules)
    assert (late.code(), leader.code()) == (75, 1)
    assert late.event("failed")["cause"] == "chief has failed"


def test_a_chief_that_is_stopped_or_killed_ends_no_other_task(start: Start) -> None:
    others = [start(name, SLEEPS) for name in ("worker-0", "ps-0")]
    for number, script in ((signal.SIGTERM, "trap 'exit 143' TERM"), (signal.SIGTERM, "trap 'exit 42' TERM"), (signal.SIGKILL, ":")):
        chief = start("chief", f"{script}; echo begun; while :; do sleep 0.1; done")
        chief.line("begun")
        chief.send(number)
        assert chief.code() == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert start("chief", "sleep 2").code() == 0
    assert [(other.code(), len(other.events("started"))) for other in others] == [(0, 1), (0, 1)]


def test_a_program_that_exits_with_0_when_it_is_stopped_is_done(start: Start) -> None:
    ps = start("ps-0", SLEEPS, sizes=CHIEF_AND_PS)
    chief = start("chief", "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done", sizes=CHIEF_AND_PS)
    chief.line("begun")
    chief.send(signal.SIGTERM)
    assert (chief.code(), ps.code()) == (0, 0)


def test_without_a_chief_worker_0_leads(start: Start) -> None:
    others = [start(name, SLEEPS, sizes=LED_BY_WORKER) for name in ("worker-1", "ps-0")]
    assert start("worker-0", "sleep 1", sizes=LED_BY_WORKER).code() == 0
    assert [other.code() for other in others] == [0, 0]


def test_a_run_may_need_all_its_workers(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": TWO_WORKERS}
    ps = start("ps-0", SLEEPS, **rules)
    chief, first = start("chief", "echo over", **rules), start("worker-0", "echo over", **rules)
    last = start("worker-1", "echo begun; until [ -e $RUN_DIR/over ]; do sleep 0.1; done", **rules)
    for leader in (chief, first):
        leader.line("over")
    last.line("begun")
    # A leader that is lost before all are done comes back and learns again which tasks are done.
    chief.send(signal.SIGTERM)
    assert chief.code() == 143
    chief = start("chief", "touch $RUN_DIR/over", **rules)
    assert [task.code() for task in (chief, first, last, ps)] == [0, 0, 0, 0]


def test_a_chief_that_fails_when_it_is_stopped_ends_no_other_task(start: Start) -> None:
    ps = start("ps-0", SLEEPS, sizes=CHIEF_AND_PS)
    chief = start("chief", "trap 'exit 1' TERM; echo begun; while :; do sleep 0.1; done", sizes=CHIEF_AND_PS)
    chief.line("begun")
    chief.send(signal.SIGTERM)
    assert chief.code() == 1
    assert start("chief", "sleep 2", sizes=CHIEF_AND_PS).code() == 0
    assert (ps.code(), len(ps.events("started"))) == (0, 1)


def test_a_task_that_exits_with_0_in_a_failed_run_has_not_succeeded(start: Start) -> None:
    ps = start("ps-0", "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done", sizes=CHIEF_AND_PS)
    ps.line("begun")
    assert start("chief", "exit 1", sizes=CHIEF_AND_PS).code() == 1
    assert ps.code() == 75


def test_a_final_failure_of_a_required_worker_fails_the_run(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": {"chief": 1, "worker": 2}}
    finished = [start("chief", "echo over", **rules), start("worker-0", "echo over", **rules)]
    for task in finished:
        task.line("over")
    assert start("worker-1", "exit 2", **rules).code() == 2
    assert [task.code() for task in finished] == [1, 75]
    assert finished[0].event("failed")["cause"] == "worker-1 has failed"


def test_a_required_worker_may_fail_before_its_leader_listens(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": CHIEF_AND_WORKER}
    worker = start("worker-0", "exit 2", **rules)
    assert worker.event("failed")["exit_code"] == 2
    time.sleep(1)  # a worker that does not wait would have exited
    chief = start("chief", "true", **rules)
    assert (chief.code(), worker.code()) == (1, 2)
    assert chief.event("failed")["cause"] == "worker-0 has failed"


def test_the_wait_for_a_lost_required_task_ends(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": CHIEF_AND_WORKER, "orphan_timeout": 2}
    chief = start("chief", "true", **rules)
    assert chief.code() == 1
    assert chief.event("failed")["cause"] == "worker-0 was gone for 2 s"
    worker = start("worker-0", "echo over", start_timeout=3, **rules)
    assert worker.code() == 75
    assert worker.event("failed")["cause"] == "chief was gone for 3 s"


def test_a_lost_required_task_is_the_cause_not_another_that_has_failed() -> None:
    tasks = frozenset({"worker-0", "ps-0"})
    address = f"127.0.0.1:{free_port()}"
    chief = RunEndTask("run", "chief", "chief", address, address, frozenset({"worker-0"}), tasks, orphan_timeout=0)
    ended: list[RunEndStatus] = []
    with FakeClockLoop() as loop:
        leader = RunEndServer(chief, loop)
        answer = leader._answer({"run": "run", "task": "ps-0", "state": FAILED})
        assert answer is not None
        answer[1]()
        leader.succeed(ended.append)
        loop.advance(1)
    assert ended == [RunEndStatus(FAILED, "worker-0 was gone for 0 s")]


def test_a_required_task_that_the_engine_has_started_again_does_not_fail_the_run() -> None:
    """Plain `docker compose up` restarts a container after any failure."""
    address = f"127.0.0.1:{free_port()}"
    tasks = frozenset({"worker-0"})
    ended: list[RunEndStatus] = []
    with FakeClockLoop() as loop:
        leader = RunEndServer(RunEndTask("run", "chief", "chief", address, address, tasks, tasks), loop)

        def report(state: str) -> None:
            answer = leader._answer({"run": "run", "task": "worker-0", "state": state})
            assert answer is not None
            answer[1]()

        report(FAILED)
        report(RUNNING)
        leader.succeed(ended.append)
        loop.advance(1)
        assert leader._status.state == RUNNING
        report(SUCCEEDED)
        loop.advance(1)
        assert (leader._status.state, ended) == (SUCCEEDED, [])  # the task does not know it yet
        report(SUCCEEDED)
        loop.advance(1)
    assert ended == [RunEndStatus(SUCCEEDED)]


def test_a_finished_task_that_is_stopped_before_the_run_has_succeeded_exits_for_a_restart(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": CHIEF_AND_WORKER}
    chief = start("chief", "echo begun; sleep 3600", **rules)
    worker = start("worker-0", "echo over", **rules)
    chief.line("begun")  # before that, the signal would find no handler
    worker.line("over")
    worker.send(signal.SIGTERM)
    assert worker.code() == 143
    chief.send(signal.SIGTERM)
    assert chief.code() == 143
    chief = start("chief", "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done", **rules)
    chief.line("begun")
    chief.send(signal.SIGTERM)
    assert chief.code() == 143


def test_the_chief_waits_for_a_task_that_did_not_receive_its_answer(start: Start) -> None:
    """A task on a busy machine gives up on the answer, and asks again."""
    port, answer, end = free_port(), b"", time.monotonic() + 60
    chief = start("chief", "exit 0", sizes=CHIEF_AND_WORKER, port=port)
    while b"succeeded" not in answer:
        assert time.monotonic() < end, f"waited 60 s for the chief's parent to say that the run has succeeded; last: {answer!r}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b'{"run": "r/", "task": "worker-0", "state": "running"}\n')
            answer = connection.recv(4096)
        time.sleep(0.1)
    worker = start("worker-0", SLEEPS, sizes=CHIEF_AND_WORKER, port=port, orphan_timeout=20)
    assert [chief.code(), worker.code()] == [0, 0]


def test_another_runs_chief_is_not_believed(start: Start) -> None:
    ps = start("ps-0", SLEEPS, sizes=CHIEF_AND_PS, run="mine")
    chief = start("chief", "echo over", sizes=CHIEF_AND_PS, run="other")
    chief.line("over")
    time.sleep(2)  # for two requests
    chief.send(signal.SIGTERM)
    assert chief.code() == 0
    assert ps.process.poll() is None


def test_a_chief_whose_port_is_taken_reports_it(start: Start) -> None:
    with socket.create_server(("", 0)) as taken:
        chief = start("chief", "true", sizes=CHIEF_AND_PS, port=taken.getsockname()[1])
        assert chief.code() == 0
    assert "is in use by another process" in chief.event("notice")["message"]


def test_a_leader_serves_once_its_predecessor_has_left_the_port() -> None:
    with FakeClockLoop() as loop:
        with socket.create_server(("", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            leader = RunEndServer(RunEndTask("run", "chief", "chief", address, address), loop)
            loop.advance(3)
            assert not leader.answers
        loop.advance(3)
    assert ask(RunEndTask("run", "ps-0", "chief", address, address)) == RunEndStatus(RUNNING)


@pytest.mark.parametrize("character", ["x", "\x00", "\N{SNOWMAN}", "\N{GRINNING FACE}", "\udcff"])
def test_a_long_reason_is_cut_and_arrives(character: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with FakeClockLoop() as loop:
        leader = RunEndServer(RunEndTask("run", "chief", "chief", address, address, followers=frozenset({"ps-0"})), loop)
        leader.fail(character * 10_000, lambda _: None)
    status = ask(RunEndTask("run", "ps-0", "chief", address, address))
    assert status is not None
    assert (status.state, set(status.reason)) == (FAILED, {character if character != "\udcff" else "?"})


def cluster(**sizes: int) -> dict[str, list[str]]:
    return {role: [f"{role}{index}:2222" for index in range(count)] for role, count in sizes.items()}


def task(name: str, **sizes: int) -> TaskConfig:
    role, _, index = name.partition("-")
    return parse(json.dumps({"cluster": cluster(**sizes), "task": {"type": role, "index": int(index or 0)}}))


@pytest.mark.parametrize(
    "name, rules, grace, is_required",
    [
        ("ps-0", {}, 0.0, False),
        ("worker-0", {"graces": {"worker": 3.0}}, 3.0, False),
        ("evaluator", {"graces": {"worker": 3.0, "evaluator": 600.0}}, 600.0, False),
        ("worker-1", {"success": "all_workers", "graces": {"worker": 3.0}}, 3.0, True),
    ],
)
def test_a_task_knows_its_leader_its_grace_period_and_whether_it_is_required(
    name: str, rules: dict[str, Any], grace: float, is_required: bool
) -> None:
    one = run_end_task(RunEndRules(2224, **rules), task(name, chief=1, worker=2, ps=1), run="r", has_evaluator=True)
    assert one == RunEndTask("r", name, "chief", "chief0:2224", "chief0:2222", grace=grace, is_required=is_required)


def test_the_leader_knows_its_followers_and_the_required_tasks() -> None:
    leader = run_end_task(RunEndRules(2224, "all_workers"), task("worker-0", worker=3, ps=1), run="r", has_evaluator=True)
    assert leader is not None
    assert leader.is_leader
    assert leader.required == {"worker-1", "worker-2"}
    assert leader.followers == {"worker-1", "worker-2", "ps-0", "evaluator"}


def test_many_tasks_ask_less_often() -> None:
    ps = run_end_task(RunEndRules(2224), task("ps-0", worker=900, ps=100), run="r", has_evaluator=False)
    assert ps is not None
    assert ps.interval == 10


def test_a_task_without_peers_asks_no_leader() -> None:
    assert run_end_task(RunEndRules(2224), task("chief", chief=1), run="r", has_evaluator=False) is None
