"""How the tasks of a user's program end with their run, by the trainer's own parents; no launcher, no engine, no TensorFlow."""

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
from tests.trainer.conftest import Ports, Running, Trainers
from trainer.ending import Member, Rules, member
from trainer.tf_config import TaskConfig, parse

pytestmark = pytest.mark.takes_minutes  # in which they wait, while others compute

SLEEPS = "exec sleep 600"
CLUSTER = {"chief": 1, "worker": 1, "ps": 1}

TWO_WORKERS = {"chief": 1, "worker": 2, "ps": 1}
LED_BY_WORKER = {"worker": 2, "ps": 1}
WORKERS = {"chief": 1, "worker": 1}
SERVED = {"chief": 1, "ps": 1}

Start = Callable[..., Running]


@pytest.fixture
def start(trainers: Trainers, ports: Ports, tmp_path: Path) -> Start:
    """Start a task of one cluster with a shell script for its program."""
    port = free_port()
    addresses: defaultdict[tuple[str, int], str] = defaultdict(ports.address)

    def started(
        name: str,
        script: str,
        *,
        sizes: dict[str, int] = CLUSTER,
        strategy: str = "parameter_server",
        evaluator: bool = False,
        worker: float = 0.5,
        unsupervised: list[str] | None = None,
        **rules: Any,
    ) -> Running:
        role, _, index = name.partition("-")
        there = [(role, place) for role, count in sizes.items() for place in range(count)]
        cluster = {role: [addresses[one] for one in there if one[0] == role] for role in sizes}
        own: dict[str, Any] = {key: rules.pop(key) for key in ("start_timeout", "orphan_timeout") if key in rules}
        settings: dict[str, Any] = {
            "run": rules.pop("run", "r"),
            "run_dir": str(tmp_path / "run"),
            "scratch_dir": str(tmp_path),
            "strategy": strategy,
            "max_restarts": 0,
            "has_evaluator": evaluator,
            "unsupervised": unsupervised,
            "ending": {"port": port, "graces": {"worker": worker, "evaluator": 0.5}, **rules},
            **own,
        }
        config = {"cluster": cluster, "task": {"type": role, "index": int(index or 0)}}
        env = {"TF_CONFIG": json.dumps(config), "TRAINER_SETTINGS": json.dumps(settings), "RUN_DIR": settings["run_dir"]}
        return trainers.trainer("--", "sh", "-c", script, env=env)

    return started


def test_all_end_when_the_chief_is_done(start: Start) -> None:
    others = [start(name, SLEEPS, evaluator=True) for name in ("worker-0", "ps-0", "evaluator")]
    deaf = others[1]
    chief = start("chief", "sleep 1", evaluator=True)
    assert [chief.code(), *(other.code() for other in others)] == [0] * 4
    assert deaf.event("notice")["message"] == "the run has succeeded; this task is ended"
    assert deaf.event("done")


def test_a_chief_does_not_stay_for_tasks_that_have_no_parent_to_ask(start: Start) -> None:
    ps = start("ps-0", SLEEPS, unsupervised=["worker"])
    chief = start("chief", "sleep 1", unsupervised=["worker"])
    assert (chief.code(45.0), ps.code()) == (0, 0)  # it would stay for a minute


def test_a_program_that_ignores_being_asked_is_killed_and_done(start: Start) -> None:
    sizes = {"chief": 1, "ps": 1}
    ps = start("ps-0", "trap '' TERM; echo deaf; while :; do sleep 1; done", sizes=sizes)
    ps.line("deaf")
    assert start("chief", "true", sizes=sizes).code() == 0
    assert ps.code() == 0


def test_workers_of_parameter_servers_may_end_by_themselves(start: Start) -> None:
    worker = start("worker-0", "trap 'echo asked' TERM; echo begun; sleep 3; echo written", sizes=WORKERS, worker=60)
    worker.line("begun")
    assert start("chief", "true", sizes=WORKERS).code() == 0
    assert worker.code() == 0
    assert "written" in worker.lines
    assert "asked" not in worker.lines


def test_workers_of_an_all_reduce_take_their_time(start: Start) -> None:
    worker = start("worker-0", "echo begun; sleep 3; echo written", sizes=WORKERS, strategy="multi_worker_mirrored", worker=30)
    worker.line("begun")
    assert start("chief", "true", sizes=WORKERS, strategy="multi_worker_mirrored").code() == 0
    assert (worker.code(), worker.lines.count("written")) == (0, 1)


def test_what_fails_for_want_of_a_chief_that_is_done_is_done(start: Start) -> None:
    """It fails before it has heard of the end: a peer of a program that is gone."""
    worker = start("worker-0", "until [ -e $RUN_DIR/over ]; do sleep 0.1; done; sleep 0.3; exit 1", sizes=WORKERS, worker=60)
    worker.event("started")
    chief = start("chief", "sleep 1; touch $RUN_DIR/over", sizes=WORKERS)
    assert (worker.code(), chief.code()) == (0, 0)


@pytest.mark.parametrize("script, code", [("exit 1", 1), ("exit 2", 2)])
def test_a_chief_that_fails_for_good_fails_the_run(start: Start, script: str, code: int) -> None:
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
        pytest.param("all_workers", "true", "exit 2", 2, id="by a worker that it needs"),
    ],
)
def test_a_task_that_starts_when_its_run_has_failed_hears_of_it(start: Start, success: str, chief: str, other: str, code: int) -> None:
    """A pod may wait for its volume, or for a node, longer than another task needs to fail."""
    rules: dict[str, Any] = {"success": success, "sizes": {"chief": 1, "worker": 2}}
    worker = start("worker-0", other, **rules)
    leader = start("chief", chief, **rules)
    assert worker.code() == code
    time.sleep(6)  # a chief whose tasks had all asked would be gone
    late = start("worker-1", SLEEPS, **rules)
    assert (late.code(), leader.code()) == (75, 1)
    assert late.event("failed")["cause"] == "chief has failed"


def test_a_chief_that_is_asked_to_stop_or_killed_ends_nobody(start: Start) -> None:
    others = [start(name, SLEEPS) for name in ("worker-0", "ps-0")]
    for number, script in ((signal.SIGTERM, "trap 'exit 143' TERM"), (signal.SIGTERM, "trap 'exit 42' TERM"), (signal.SIGKILL, ":")):
        chief = start("chief", f"{script}; echo begun; while :; do sleep 0.1; done")
        chief.line("begun")
        chief.send(number)
        assert chief.code() == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    assert start("chief", "sleep 2").code() == 0
    assert [(other.code(), len(other.events("started"))) for other in others] == [(0, 1), (0, 1)]


def test_a_program_that_finishes_when_it_is_asked_to_stop_is_done(start: Start) -> None:
    sizes = {"chief": 1, "ps": 1}
    ps = start("ps-0", SLEEPS, sizes=sizes)
    chief = start("chief", "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done", sizes=sizes)
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
    for one in (chief, first):
        one.line("over")
    last.line("begun")
    # A leader that is lost before all are done comes back, and hears again who is.
    chief.send(signal.SIGTERM)
    assert chief.code() == 143
    chief = start("chief", "touch $RUN_DIR/over", **rules)
    assert [one.code() for one in (chief, first, last, ps)] == [0, 0, 0, 0]


def test_a_chief_that_fails_when_it_is_asked_to_stop_ends_nobody(start: Start) -> None:
    ps = start("ps-0", SLEEPS, sizes=SERVED)
    chief = start("chief", "trap 'exit 1' TERM; echo begun; while :; do sleep 0.1; done", sizes=SERVED)
    chief.line("begun")
    chief.send(signal.SIGTERM)
    assert chief.code() == 1
    assert start("chief", "sleep 2", sizes=SERVED).code() == 0
    assert (ps.code(), len(ps.events("started"))) == (0, 1)


def test_what_ends_as_done_in_a_run_that_has_failed_has_not_succeeded(start: Start) -> None:
    ps = start("ps-0", "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done", sizes=SERVED)
    ps.line("begun")
    assert start("chief", "exit 1", sizes=SERVED).code() == 1
    assert ps.code() == 75


def test_a_worker_that_the_run_needs_and_that_fails_for_good_fails_it(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": {"chief": 1, "worker": 2}}
    done = [start("chief", "echo over", **rules), start("worker-0", "echo over", **rules)]
    for one in done:
        one.line("over")
    assert start("worker-1", "exit 2", **rules).code() == 2
    assert [one.code() for one in done] == [1, 75]
    assert done[0].event("failed")["cause"] == "worker-1 has failed"


def test_a_worker_that_the_run_needs_may_fail_before_its_leader_listens(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": WORKERS}
    worker = start("worker-0", "exit 2", **rules)
    assert worker.event("failed")["exit_code"] == 2
    time.sleep(1)  # a worker that does not wait would be gone
    chief = start("chief", "true", **rules)
    assert (chief.code(), worker.code()) == (1, 2)
    assert chief.event("failed")["cause"] == "worker-0 has failed"


def test_a_required_task_that_is_gone_for_good_is_not_waited_for_without_end(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": WORKERS, "orphan_timeout": 2}
    chief = start("chief", "true", **rules)
    assert chief.code() == 1
    assert chief.event("failed")["cause"] == "worker-0 was gone for 2 s"
    worker = start("worker-0", "echo over", start_timeout=2, **rules)
    assert worker.code() == 75
    assert worker.event("failed")["cause"] == "chief was gone for 2 s"


def test_one_that_is_done_and_asked_to_stop_before_the_run_has_succeeded_comes_back(start: Start) -> None:
    rules: dict[str, Any] = {"success": "all_workers", "sizes": WORKERS}
    chief = start("chief", "echo begun; sleep 60", **rules)
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


def test_a_task_that_was_answered_and_did_not_receive_it_is_waited_for(start: Start) -> None:
    """As one does whose machine is busy: it gives the answer up, and asks again."""
    port, answer, end = free_port(), b"", time.monotonic() + 60
    chief = start("chief", "exit 0", sizes=WORKERS, port=port)
    while b"succeeded" not in answer:
        assert time.monotonic() < end, f"waited 60 s for the chief's parent to say that the run has succeeded; last: {answer!r}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b'{"run": "r/", "task": "worker-0", "state": "running"}\n')
            answer = connection.recv(4096)
        time.sleep(0.1)
    worker = start("worker-0", SLEEPS, sizes=WORKERS, port=port, orphan_timeout=20)
    assert [chief.code(), worker.code()] == [0, 0]


def test_another_runs_chief_is_not_believed(start: Start) -> None:
    ps = start("ps-0", SLEEPS, sizes=SERVED, run="mine")
    chief = start("chief", "echo over", sizes=SERVED, run="other")
    chief.line("over")
    time.sleep(2)  # two questions
    chief.send(signal.SIGTERM)
    assert chief.code() == 0
    assert ps.process.poll() is None


def test_a_chief_whose_port_is_taken_says_so(start: Start) -> None:
    with socket.create_server(("", 0)) as taken:
        chief = start("chief", "true", sizes=SERVED, port=taken.getsockname()[1])
        assert chief.code() == 0
    assert "is in use by another process" in chief.event("notice")["message"]


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
def test_what_follows_the_end_is_in_one_table(name: str, rules: dict[str, Any], grace: float, is_required: bool) -> None:
    found = member(Rules(2224, **rules), task(name, chief=1, worker=2, ps=1), run="r", has_evaluator=True)
    assert found == Member("r", name, "chief", "chief0:2224", "chief0:2222", grace=grace, is_required=is_required)


def test_the_leader_knows_who_asks_and_who_is_required() -> None:
    found = member(Rules(2224, "all_workers"), task("worker-0", worker=3, ps=1), run="r", has_evaluator=True)
    assert found is not None
    assert found.is_leader
    assert found.required == {"worker-1", "worker-2"}
    assert found.followers == {"worker-1", "worker-2", "ps-0", "evaluator"}


def test_many_tasks_ask_less_often() -> None:
    found = member(Rules(2224), task("ps-0", worker=900, ps=100), run="r", has_evaluator=False)
    assert found is not None
    assert found.interval == 10


def test_one_task_asks_nobody() -> None:
    assert member(Rules(2224), task("chief", chief=1), run="r", has_evaluator=False) is None
