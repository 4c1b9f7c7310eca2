"""The work of a training process, by its role and strategy: a function each to serve, to evaluate, to train and to run a program.

Only the roles that need all of TensorFlow import it: servers start without.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.engine import peer_wait
from trainer.engine.parameter_server import servers
from trainer.engine.parameter_server.bare_server import server_class
from trainer.engine.session import PeerLostError, Session
from trainer.engine.train_config import TrainConfig
from trainer.events import Reporter
from trainer.exit_codes import ExitCode
from trainer.port_holder import PortHolder
from trainer.socket_filter import restricting_to_loopback
from trainer.strategies import STRATEGIES, is_server
from trainer.tf_config import TaskConfig
from trainer.workloads.protocol import Agent, ExplainsErrors, Workload

if TYPE_CHECKING:
    from trainer.engine.parameter_server.server_watch import ServerWatch
    from trainer.engine.parameter_server.worker_pool import Connection

DEVICES = Path("/dev")  # has nvidia0 and so on, one for each GPU of the machine or container


@dataclass(frozen=True)
class RoleContext:
    """The input of every role.

    `port` is held until TensorFlow takes it; `stop_requested` returns whether the task was asked to stop; `began` is the task's start (time.time).
    """

    task: TaskConfig
    config: TrainConfig
    port: PortHolder
    report: Reporter
    stop_requested: Callable[[], bool]
    began: float


def import_for(strategy: str, role: str) -> None:
    """Import what a role needs of TensorFlow: all of it, or for servers the little that serves."""
    if is_server(strategy, role):
        server_class()
    else:
        import keras  # noqa: F401
        import tensorflow as tf  # noqa: F401


def run(context: RoleContext) -> ExitCode:
    """Do the task's work and return how it ended."""
    strategy, role = context.config.strategy, context.task.role
    if is_server(strategy, role):
        return _serve(context)
    if role == "evaluator":
        return _evaluate(context)
    return _train(context) if STRATEGIES[strategy].trains else _run_program(context)


def unused_gpus(environ: Mapping[str, str] = os.environ) -> str:
    """Return a notice with cause and remedy if this task has GPUs (NVIDIA, Linux) and TensorFlow uses none; else an empty string.

    TensorFlow itself continues without GPUs, and does not log it at a task's log level. Not for servers, which do not import
    TensorFlow's Python, nor for programs of a `command`.
    """
    import tensorflow as tf

    count = len(list(DEVICES.glob("nvidia[0-9]*")))
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if count and chosen is not None:
        count = len([gpu for gpu in chosen.split(",") if gpu.strip() not in {"", "-1", "NoDevFiles"}])
    if not count or tf.config.list_physical_devices("GPU"):
        return ""
    if tf.test.is_built_with_cuda():
        cause = "it does not find the driver or a CUDA library; TF_CPP_MIN_LOG_LEVEL=0 and TF_CPP_MAX_VLOG_LEVEL=1 show which"
    else:
        cause = "it is built without CUDA; install tensorflow[and-cuda], or take the image for GPUs"
    return f"TensorFlow uses no GPU, and this task has {count}: {cause}"


# References to sessions: if Python destroyed them after their servers are gone, errors would be logged.
_kept_alive: list[Session] = []


def _workload(context: RoleContext) -> Workload | Agent:
    import keras

    from trainer.workloads.loading import load_agent, load_workload

    # The user's module may split its data while it is imported: in the same way in each task and after each restart.
    keras.utils.set_random_seed(context.config.seed)
    workload = load_agent(context.config.train) or load_workload(context.config.train)
    if unused := unused_gpus():  # after the user's module, which may say which GPUs are to be used
        context.report("notice", message=unused)
    return workload


@dataclass(frozen=True)
class TrainingSetup:
    """Devices and tasks that are ready to train.

    `replicas` batches make a step; `make_session` creates the session once the number of steps is known. `stop_requested` returns whether this task,
    or a ps that it needs, was asked to stop; `server_watch` watches its ps.
    """

    replicas: int
    make_session: Callable[[TrainConfig], Session]
    stop_requested: Callable[[], bool]
    server_watch: "ServerWatch | None" = None


def _single(context: RoleContext, workload: Workload) -> TrainingSetup:
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.replicated import ReplicatedSession

    return TrainingSetup(1, lambda config: ReplicatedSession(workload, config, AllReduce()), context.stop_requested)


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the signal handlers afterwards: TensorFlow's collective runtime replaces that of SIGTERM by one that does nothing."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _multi_worker(context: RoleContext, workload: Workload) -> TrainingSetup:
    from trainer.engine.collectives.all_reduce import AllReduce
    from trainer.engine.replicated import ReplicatedSession

    addresses = context.task.tasks()
    names = list(addresses)
    with _signals_restored(), restricting_to_loopback(context.task.address):
        all_reduce = AllReduce(len(names), names.index(context.task.name), context.config.train.gradients.wire)
    if message := all_reduce.connect(names, list(addresses.values())):
        context.report("notice", message=message)
    return TrainingSetup(all_reduce.size, lambda config: ReplicatedSession(workload, config, all_reduce), context.stop_requested)


def _mirrored(context: RoleContext, workload: Workload) -> TrainingSetup:
    from trainer.engine.mirrored import MirroredSession, devices

    names = devices(context.config.local_replicas)
    return TrainingSetup(len(names), lambda config: MirroredSession(workload, config, names), context.stop_requested)


def _parameter_server(context: RoleContext, workload: Workload) -> TrainingSetup:
    from trainer.engine.parameter_server.asynchronous import AsynchronousSession
    from trainer.engine.parameter_server.synchronous import SynchronousSession

    connection, stop_requested = _connected(context)
    sync = context.config.train.sync
    session = AsynchronousSession if sync is None else SynchronousSession
    replicas = 1 if sync is None else sync.replicas_to_aggregate
    return TrainingSetup(replicas, lambda config: session(workload, config, connection, stop_requested), stop_requested, connection.watch)


def _connected(context: RoleContext) -> "tuple[Connection, Callable[[], bool]]":
    """Connect the chief to its servers, and watch them. Return the connection, and a predicate: whether the chief, or a ps, was asked to stop."""
    from trainer.engine.parameter_server.server_watch import watch
    from trainer.engine.parameter_server.worker_pool import connect

    connection = connect(context.task)
    server_watch = watch(context.task.peers(), context.config.scratch_dir, context.report)
    return replace(connection, watch=server_watch), lambda: context.stop_requested() or bool(server_watch.leaving)


def _single_agent(context: RoleContext, agent: Agent) -> TrainingSetup:
    from trainer.engine.agents import LocalAgentSession

    return TrainingSetup(1, lambda config: LocalAgentSession(agent, config, context.stop_requested), context.stop_requested)


def _server_agent(context: RoleContext, agent: Agent) -> TrainingSetup:
    from trainer.engine.server_agents import ServerAgentSession

    connection, stop_requested = _connected(context)
    return TrainingSetup(1, lambda config: ServerAgentSession(agent, config, connection, stop_requested), stop_requested, connection.watch)


_SETUPS: dict[str, Callable[[RoleContext, Workload], TrainingSetup]] = {
    "single": _single,
    "mirrored": _mirrored,
    "multi_worker_mirrored": _multi_worker,
    "parameter_server": _parameter_server,
}
_AGENT_SETUPS: dict[str, Callable[[RoleContext, Agent], TrainingSetup]] = {
    "single": _single_agent,
    "parameter_server": _server_agent,
}


def _train(context: RoleContext) -> ExitCode:
    from trainer.engine import epochs, loop

    context.report.heartbeat("starting")
    # All sessions but one configure TensorFlow's devices, which must happen before TensorFlow is initialized.
    workload = _workload(context)
    if not STRATEGIES[context.config.strategy].single_replica:
        _check_not_started(context)
    strategy = context.config.strategy
    if not peer_wait.wait(context.task, strategy, context.port, context.stop_requested, context.config.start_timeout):
        return ExitCode.STOPPED
    setup = _AGENT_SETUPS[strategy](context, workload) if isinstance(workload, Agent) else _SETUPS[strategy](context, workload)
    config = epochs.with_steps(context.config, workload, setup.replicas)  # not before: looking at a user's data may initialize TensorFlow
    with explain_errors(workload):
        session = setup.make_session(config)
        _kept_alive.append(session)
        context.report("ready", seconds=time.time() - context.began)
        outcome = loop.run(
            session, workload, config, context.report, setup.stop_requested, context.stop_requested if setup.server_watch else None
        )
    if setup.server_watch is not None:
        setup.server_watch.stop()
    if not outcome.finished:
        if setup.server_watch is not None:
            servers.notify_saved(tuple(setup.server_watch.leaving), context.config.scratch_dir)
        if STRATEGIES[strategy].all_reduces:
            # Every task waits until the chief has saved; a peer that is lost now does no harm.
            with suppress(PeerLostError):
                session.close()
        return ExitCode.STOPPED
    session.close()
    if STRATEGIES[strategy].uses_servers:
        _stop_servers(context)
    _report_done(context, outcome.step, outcome.metrics, outcome.ended_early)
    return ExitCode.DONE


@contextmanager
def explain_errors(workload: Workload | Agent) -> Iterator[None]:
    """Replace an error that the workload can explain by its explanation; see ExplainsErrors."""
    try:
        yield
    except Exception as error:
        if isinstance(workload, ExplainsErrors) and (explained := workload.explained(error)) is not None:
            raise explained from error
        raise


def _run_program(context: RoleContext) -> ExitCode:
    """Run a program with manual placement on the servers of the cluster."""
    from trainer.engine.manual import program
    from trainer.programs.program_loading import load_program

    loaded = load_program(context.config.train)
    _check_not_started(context)
    outcome = program.run(loaded, context.task, context.config, context.port, context.report, context.stop_requested, context.began)
    _stop_servers(context)
    _report_done(context, outcome.step, outcome.metrics)
    return ExitCode.DONE


def _stop_servers(context: RoleContext) -> None:
    """Inform every server that the run is done."""
    for name in servers.stop_all(context.task, context.config.scratch_dir):
        context.report("notice", message=f"{name} could not be reached at the end of the run; it ends by its orphan timeout")


def _check_not_started(context: RoleContext) -> None:
    """Raise WorkloadError when the user's code has already computed with TensorFlow: its devices can no longer be configured."""
    from tensorflow.python.eager.context import context as tensorflow_context

    from trainer.workloads.errors import WorkloadError

    if tensorflow_context()._context_handle is not None:  # noqa: SLF001 - TensorFlow has no public way to ask
        raise WorkloadError(
            f"train.workload {context.config.train.workload} creates tensors, variables or a model while it is imported or its class is constructed, "
            f"which strategy {context.config.strategy} does not allow: it has to set up TensorFlow's devices first. "
            "Create them in a function (def model(): ...) or in the workload's methods; NumPy arrays may stay."
        )


def _serve(context: RoleContext) -> ExitCode:
    finished = servers.serve(context.task, context.config.scratch_dir, context.stop_requested)
    if not finished:
        return ExitCode.STOPPED
    _report_done(context, None, {})
    return ExitCode.DONE


def _evaluate(context: RoleContext) -> ExitCode:
    from trainer.engine import evaluator

    workload = _workload(context)
    with explain_errors(workload):
        last = evaluator.evaluate_checkpoints(workload, context.config, context.report, context.stop_requested)
    if last is None:
        return ExitCode.STOPPED
    _report_done(context, *last)
    return ExitCode.DONE


def _report_done(context: RoleContext, step: int | None, metrics: dict[str, float], ended_early: str | None = None) -> None:
    early = {"ended_early": ended_early} if ended_early else {}
    context.report("done", step=step, seconds=time.time() - context.began, metrics=metrics, **early)
