"""Checks the trainer's settings, also against the task's cluster, before anything is started. Imports no TensorFlow."""

import difflib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainer.settings import Settings, TrainerSettings
from trainer.settings_rules import conflicts
from trainer.strategies import STRATEGIES, Strategy
from trainer.tf_config import ConfigurationError, TaskConfig
from trainer.workloads.catalog import CATALOG


def check_fit(task: TaskConfig, settings: TrainerSettings) -> list[str]:
    """Return the reasons why this task cannot train with these settings in its cluster, a sentence each."""
    if settings.train is None:
        return []
    counts = {role: len(task.cluster.get(role, ())) for role in ("chief", "worker", "ps")}
    problems = _cluster_problems(settings.strategy, counts)
    if not STRATEGIES[settings.strategy].trains and task.role == "evaluator":
        problems.append(
            f"strategy {settings.strategy} saves no checkpoints for an evaluator; TF_CONFIG.task.type is evaluator; leave that task out"
        )
    sync = settings.train.sync
    if sync is not None and STRATEGIES[settings.strategy].trains and not STRATEGIES[settings.strategy].uses_servers:
        problems.append(f"train.sync is for parameter_server; the strategy is {settings.strategy}; remove train.sync")
    elif sync is not None and 0 < counts["worker"] < sync.replicas_to_aggregate:
        problems.append(
            f"train.sync.replicas_to_aggregate is {sync.replicas_to_aggregate}; expected at most {counts['worker']}, the number of workers"
        )
    problems += [
        f"train.{'.'.join(conflict.path)}: {conflict.message}; expected {conflict.expected}; {conflict.remedy}"
        for conflict in conflicts(settings.train, settings.strategy)
    ]
    return problems


def _cluster_problems(strategy: Strategy, counts: dict[str, int]) -> list[str]:
    """Return the reasons why the tasks of a cluster, counted by role, do not fit a strategy."""
    traits, total = STRATEGIES[strategy], sum(counts.values())
    if traits.uses_servers:
        missing = [role for role in traits.mandatory if not counts[role]]
        return [f"strategy {strategy} needs a {role} in TF_CONFIG.cluster; there is none; add its address" for role in missing]
    if traits.all_reduces:
        return [f"strategy {strategy} has no ps; TF_CONFIG.cluster has {counts['ps']}; remove them"] if counts["ps"] else []
    too_many = f"strategy {strategy} is one task; TF_CONFIG.cluster has {total}; use multi_worker_mirrored or parameter_server"
    return [too_many] if total > 1 else []


def validated(document: Any, origin: str) -> TrainerSettings:
    """Return the settings in a document. Raises ConfigurationError with every problem at once."""
    if not isinstance(document, dict):
        raise ConfigurationError(
            [f"{origin} is {type(document).__name__}; expected an object with the keys run, run_dir, scratch_dir, train"]
        )
    # The workload is checked in the raw document, so that its problems are reported together with the others.
    problems = _workload_problems(origin, document)
    try:
        settings = TrainerSettings.model_validate(document)
    except ValidationError as error:
        problems = [_explain(origin, TrainerSettings, problem) for problem in error.errors()] + problems
    if problems:
        raise ConfigurationError(problems)
    return settings


def _workload_problems(origin: str, document: dict[str, Any]) -> list[str]:
    """Return what is wrong with a document's built-in workload: its name, its strategy, its parameters."""
    train = document.get("train")
    name = train.get("workload") if isinstance(train, dict) else None
    if not isinstance(name, str) or not name or ":" in name:  # a class of the user's own: only the training process can load it
        return []
    entry = CATALOG.get(name)
    if entry is None:
        similar = difflib.get_close_matches(name, CATALOG, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else "give one of these"
        return [f"{origin}.train.workload is {name!r}; expected {', '.join(sorted(CATALOG))} or package.module:name; {hint}"]
    problems = []
    strategy = document.get("strategy", TrainerSettings.model_fields["strategy"].default)
    if strategy in typing.get_args(Strategy) and strategy not in entry.strategies:
        problems.append(f"{origin}.strategy is {strategy}; {name} runs on {', '.join(entry.strategies)}; choose one of them")
    params = train.get("params", {}) if isinstance(train, dict) else {}
    if isinstance(params, dict):
        try:
            entry.params.model_validate(params)
        except ValidationError as error:
            problems += [_explain(f"{origin}.train.params", entry.params, problem) for problem in error.errors()]
    return problems


def _explain(origin: str, model: type[Settings], problem: ErrorDetails) -> str:
    """Return a message for one of pydantic's errors: path, value, expectation and remedy."""
    *above, last = problem["loc"] or ("",)
    path = ".".join([origin, *map(str, problem["loc"])])
    parent = _model_at(model, above)
    fields = parent.model_fields if parent else {}
    if problem["type"] == "extra_forbidden":
        similar = difflib.get_close_matches(str(last), fields, n=1)
        return (
            f"{path} is an unknown key; expected one of {', '.join(fields)}; {f'did you mean {similar[0]!r}?' if similar else 'remove it'}"
        )
    field = fields.get(str(last))
    about = f" ({field.description.rstrip('.')})" if field and field.description else ""
    if problem["type"] == "missing":
        return f"{path} is missing{about}; add it"
    message = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    shown = repr(problem["input"])
    return f"{path} is {shown if len(shown) <= 60 else shown[:57] + '...'}; expected {message}{about}; correct it"


def _model_at(model: type[BaseModel] | None, path: list[int | str]) -> type[BaseModel] | None:
    """Return the model whose fields are at `path`, None if there are none."""
    for key in path:
        field = model.model_fields.get(str(key)) if model else None
        model = _model_in(field.annotation) if field else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part))), None)
