"""The `trainer` command: checks TF_CONFIG and the settings, then supervises its training process or a user's program.

trainer [--settings FILE] [--events json|text] [--check] [-- COMMAND ...]
trainer --health
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import stat
import sys
import time
import typing
from dataclasses import replace

from trainer import __version__
from trainer.exit_codes import MEANING, ExitCode
from trainer.strategies import STRATEGIES, guess_strategy

if typing.TYPE_CHECKING:
    from typing import Union

    from trainer.command_settings import CommandSettings
    from trainer.parent import Report
    from trainer.parent_config import ParentConfig
    from trainer.restart_in_place import RestartPolicy
    from trainer.run_end import RunEndTask
    from trainer.settings import TrainerSettings
    from trainer.tf_config import TaskConfig

    Settings = Union[TrainerSettings, CommandSettings]

_ENVIRONMENT_DEFAULTS = {
    "GRPC_FAIL_FAST": "use_caller",  # TensorFlow waits for peers that are not there yet
    "PYTHONUNBUFFERED": "1",  # what a killed attempt printed is not lost
}

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A stop that ends with 143 takes at least so many seconds. Kubernetes' manifests set it: a pod that is evicted for its storage is killed
# after 2 s, so it never exits 143, which would look like a deletion and not count as a failure.
_STOP_SECONDS_VARIABLE = "TRAINER_STOP_SECONDS"
_MAX_STOP = 60
_EXIT_DELAY = 1.0  # seconds; an engine on this machine reads a line of output in some milliseconds


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code; docs/architecture.md has the table."""
    # Process 1 of a container has no default action for a signal: one that comes during the imports below would be lost.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os._exit(ExitCode.STOPPED))
    trainer_arguments, command = _split(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(trainer_arguments)
    if options.health:
        return _health()
    if options.events:
        os.environ["TRAINER_EVENTS"] = options.events
    if not (options.settings or os.environ.get("TRAINER_SETTINGS")) and command is None:
        parser.print_usage(sys.stderr)
        print(
            "trainer: there is nothing to run; expected settings (TRAINER_SETTINGS or --settings FILE) or a program after --;"
            " see trainer --help",
            file=sys.stderr,
        )
        return ExitCode.FINAL_FAILURE
    code = _run(options, command)
    _delay_exit(code, time.monotonic())
    return code


def _wait_stop(code: int, reported: dict[str, tuple[float, str]], stop_seconds: float) -> None:
    """Wait until a stop has lasted for `stop_seconds`."""
    stopped_at, _ = reported.get("stopping", (time.monotonic(), ""))
    if code == ExitCode.STOPPED:
        time.sleep(max(0.0, stopped_at + stop_seconds - time.monotonic()))


def _delay_exit(code: int, reported_at: float) -> None:
    """If the container would only fail again, return no sooner than `_EXIT_DELAY` after `reported_at`; a request to stop ends the wait.

    The engine restarts the container at once; until then a supervisor can read the failure, and prevent that.
    """
    in_container = sys.platform == "linux" and 1 in {os.getpid(), os.getppid()}  # with `init`, the engine's init is process 1
    if not in_container or code in {ExitCode.DONE, ExitCode.PEER_LOST, ExitCode.STOPPED}:
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # the exit code must show what was wrong
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    signal.sigtimedwait(_STOP_SIGNALS, max(0.0, reported_at + _EXIT_DELAY - time.monotonic()))


def _split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Split the trainer's own arguments from the user's command; None if there is no `--`."""
    if "--" not in arguments:
        return arguments, None
    index = arguments.index("--")
    return arguments[:index], arguments[index + 1 :]


def _parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {int(code):>3}  {meaning}" for code, meaning in MEANING.items())
    parser = argparse.ArgumentParser(
        prog="trainer",
        usage="trainer [--settings FILE] [--events json|text] [--check] [--health] [--version] [-- COMMAND ...]",
        description="Becomes chief, worker, ps or evaluator by TF_CONFIG and trains; started again in place after a failure.",
        epilog=f"exit codes:\n{codes}\n  else a failure; started again, up to max_restarts times",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--settings", metavar="FILE", help="settings as YAML or JSON, - for stdin; default: the variable TRAINER_SETTINGS")
    parser.add_argument("--events", choices=("json", "text"), help="how progress is written; default: text on a terminal, else json")
    parser.add_argument("--check", action="store_true", help="check TF_CONFIG and settings, report every problem, start nothing")
    parser.add_argument(
        "--health", action="store_true", help="report the health of the task that runs here; exit 0 if it is healthy, else 1"
    )
    parser.add_argument("--version", action="version", version=f"trainer {__version__}")
    return parser


def _health() -> int:
    from trainer.health import examine

    health = examine()
    print(health.line)
    return ExitCode.DONE if health.healthy else ExitCode.FAILURE


def _run(options: argparse.Namespace, command: list[str] | None) -> int:
    from trainer.events import Reporter
    from trainer.output import Output
    from trainer.parent import run_parent
    from trainer.tf_config import ConfigurationError, TaskConfig, parse

    problems: list[str] = []
    task = TaskConfig()
    name = "trainer"
    try:
        task = parse(os.environ.get("TF_CONFIG"), has_master=bool(command))
        name = task.name
    except ConfigurationError as error:
        problems += error.problems
    settings = _settings(options.settings, command, problems)
    if not problems:
        problems += _combination_problems(task, settings, command)
    lifeline, stop_seconds = _lifeline(problems), _stop_seconds(problems)
    if problems:
        print("\n".join(f"trainer: {problem}" for problem in problems), file=sys.stderr, flush=True)
        if not options.check:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            Reporter(name)("failed", exit_code=int(ExitCode.FINAL_FAILURE), cause="the configuration is wrong", detail=problems[0] + more)
        return ExitCode.FINAL_FAILURE
    if options.check:
        print(f"trainer: TF_CONFIG and settings are right; this task is {name}")
        return ExitCode.DONE
    if command:
        _make_results(os.environ.get("RUN_DIR"))
    reported: dict[str, tuple[float, str]] = {}
    output = Output()
    for number in _STOP_SIGNALS:  # one that comes after `run_parent` must not change the exit code
        signal.signal(number, lambda _number, _frame: None if reported else os._exit(ExitCode.STOPPED))
    code = run_parent(_config(task, settings, command, lifeline), _recording(Reporter(name, output), reported), output)
    failed_at, failure = reported.get("failed", (time.monotonic(), ""))
    if settings is not None and not command and task.is_chief and (failure or code != ExitCode.DONE):
        from trainer.engine import run_state

        run_state.mark_ended(settings, failure)
    _wait_stop(code, reported, stop_seconds)
    if "stopping" not in reported:  # else the engine, too, was asked to stop, and waits for this container
        _delay_exit(code, failed_at)
    # Not by sys.exit: a thread may hang in a DNS look-up, and a stdout without a reader would change the exit code.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def _make_results(run_dir: str | None) -> None:
    """Create the directory `results` in RUN_DIR: a new volume is empty, and programs write there at once."""
    if run_dir:
        with contextlib.suppress(OSError):  # if the program writes there, its own error reports it
            os.makedirs(os.path.join(run_dir, "results"), exist_ok=True)  # noqa: PTH103, PTH118 - pathlib is not imported yet


def _recording(report: Report, reported: dict[str, tuple[float, str]]) -> Report:
    """Wrap `report`: also store in `reported` the time of the last event of each kind, and the failure that `failed` has."""

    def record(kind: str, /, **fields: typing.Any) -> None:
        failure = ": ".join(filter(None, (fields["cause"], fields["detail"]))) if kind == "failed" else ""
        reported[kind] = time.monotonic(), failure
        report(kind, **fields)

    return record


def _settings(path: str | None, command: list[str] | None, problems: list[str]) -> Settings | None:
    """Return the settings; None if there are none, or wrong ones. Those of a user's program are checked without pydantic, which its image may lack."""
    from trainer import command_settings
    from trainer.tf_config import ConfigurationError

    try:
        document = command_settings.load(path)
        if document is None:
            return None
        if command is None:
            from trainer.configuration import validated

            return validated(*document)
        if path:
            os.environ[command_settings.SETTINGS_VARIABLE] = json.dumps(document[0])  # the program gets them unchanged
        return command_settings.settings_of(*document)
    except ConfigurationError as error:
        problems += error.problems
    except ModuleNotFoundError as error:
        problems.append(
            f"no program follows --, and {error.name}, which training needs, is not installed; give the program: -- python train.py"
        )
    return None


def _combination_problems(task: TaskConfig, settings: Settings | None, command: list[str] | None) -> list[str]:
    """Return why valid settings and a command cannot be run together or in this cluster."""
    from importlib.util import find_spec

    from trainer.command_settings import CommandSettings
    from trainer.process_group import missing_program

    problems = []
    if settings is not None and not isinstance(settings, CommandSettings):
        from trainer.configuration import check_fit

        problems += check_fit(task, settings)
    if command is None:
        if settings is not None and settings.train is None:
            problems.append("the settings have no train section and no program follows --; give one of them")
        elif find_spec("tensorflow") is None:
            problems.append(
                f"TensorFlow is not installed in {sys.prefix}; install it: {sys.executable} -m pip install 'tf-launcher[trainer]'"
            )
        return problems
    if settings is not None and settings.train is not None:
        problems.append("the settings have a train section and a program follows --; expected one of them; remove the other")
    if not command:
        problems.append("no program follows --; expected for example: trainer -- python train.py")
    elif missing := missing_program(command):
        problems.append(missing)
    return problems


def _lifeline(problems: list[str]) -> int | None:
    """Return the file descriptor in TRAINER_LIFELINE, which must be a pipe or a socket."""
    text = os.environ.get("TRAINER_LIFELINE")
    if not text:
        return None
    with contextlib.suppress(OSError, OverflowError, ValueError):
        mode = os.fstat(int(text)).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return int(text)
    problems.append(f"TRAINER_LIFELINE is {text!r}; expected the number of an open pipe; pass it on to this process, or unset the variable")
    return None


def _stop_seconds(problems: list[str]) -> float:
    """Return TRAINER_STOP_SECONDS, 0 if it is not set."""
    text = os.environ.get(_STOP_SECONDS_VARIABLE) or "0"
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= _MAX_STOP:
            return float(text)
    problems.append(f"{_STOP_SECONDS_VARIABLE} is {text!r}; expected seconds, 0 to {_MAX_STOP}; write 4, or unset the variable")
    return 0.0


def _config(task: TaskConfig, settings: Settings | None, command: list[str] | None, lifeline: int | None) -> ParentConfig:
    from trainer.command_settings import CommandSettings
    from trainer.parent_config import TRAINING_COMMAND, ParentConfig, StallPolicy, Timeouts
    from trainer.peers import required_peers, watched_chief, watched_workers

    environment = {name: value for name, value in _ENVIRONMENT_DEFAULTS.items() if name not in os.environ}
    if settings is not None and not isinstance(settings, CommandSettings):
        environment["RUN_DIR"] = os.environ.get("RUN_DIR") or settings.run_dir  # the user's callbacks write there
        # Settings that were left out stay left out: the training process fills in the workload's defaults.
        environment["TRAINER_SETTINGS"] = settings.model_dump_json(exclude_unset=True)
    strategy = settings.strategy if settings else guess_strategy(len(task.tasks()), has_ps="ps" in task.cluster)
    return ParentConfig(
        command=tuple(command or TRAINING_COMMAND),
        role=task.role,
        runs_built_in_trainer=not command,
        trains=not command and STRATEGIES[strategy].trains,
        added_environment=environment,
        required_peers=required_peers(task, strategy),
        watched_chief=None if command else watched_chief(task, strategy),
        watched_workers=() if command else watched_workers(task, strategy),
        run_end_task=_run_end_task(task, settings) if command and settings else None,
        lifeline=lifeline,
        policy=_policy(task, settings, command),
        timeouts=Timeouts(start=settings.start_timeout, orphan=settings.orphan_timeout) if settings else Timeouts(),
        stalls=StallPolicy(settings.stall_timeout, settings.on_stall or "tell") if settings else StallPolicy(),
    )


def _run_end_task(task: TaskConfig, settings: Settings) -> RunEndTask | None:
    from trainer import run_end

    rules = run_end.RunEndRules(**dict(settings.ending)) if settings.ending else None
    run_end_task = run_end.run_end_task(
        rules,
        task,
        run=f"{settings.run}/{settings.spec_digest}",
        has_evaluator=settings.has_evaluator,
        unsupervised=tuple(settings.unsupervised or ()),
    )
    return run_end_task and replace(run_end_task, orphan_timeout=settings.orphan_timeout, start_timeout=settings.start_timeout)


def _policy(task: TaskConfig, settings: Settings | None, command: list[str] | None) -> RestartPolicy:
    """Return how often the task is restarted. A task that saves or reads checkpoints recovers by a newer one, other tasks by time."""
    from trainer.restart_in_place import RestartPolicy

    role_rules: typing.Any = (settings.restarts or {}).get(task.role, {}) if settings else {}
    policy = RestartPolicy(**{"max_restarts": settings.max_restarts, **dict(role_rules)}) if settings else RestartPolicy()
    saves = not command and settings is not None and STRATEGIES[settings.strategy].trains and (task.is_chief or task.role == "evaluator")
    return replace(policy, recovers_after=math.inf) if saves else policy


if __name__ == "__main__":
    sys.exit(main())
