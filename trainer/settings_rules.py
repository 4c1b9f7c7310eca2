"""Rules between fields of the train settings, for the launcher and the trainer alike.

Imports no TensorFlow. Each rule is a function of the settings and the strategy; RULES lists them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainer.settings import LearningRate, Train, direction
from trainer.strategies import STRATEGIES, TRAINING_STRATEGIES, Strategy
from trainer.workloads.catalog import CATALOG

# schedule -> its fields, and those of them that it requires.
_SCHEDULE_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "constant": ((), ()),
    "cosine": (("decay_steps", "final"), ()),
    "linear": (("decay_steps", "final"), ()),
    "exponential": (("decay_steps", "decay_rate", "staircase"), ("decay_steps",)),
    "piecewise": (("boundaries", "factors"), ("boundaries", "factors")),
}
_ALL_SCHEDULE_FIELDS = ("decay_steps", "decay_rate", "staircase", "final", "boundaries", "factors")
_MAX_MIRRORED = 32  # batches a step
_MAX_PATIENCE = 999  # evaluations; of evaluations.MAX_RETAINED, one is the best
_CLIPS = ("clip_value", "clip_norm", "clip_global_norm")
_PROGRAM_FIELDS = ("workload", "params", "data", "seed")  # all the settings of a program with manual placement


@dataclass(frozen=True)
class Conflict:
    """Settings that do not fit together: the path below `train`, the problem, the expectation and the remedy."""

    path: tuple[str, ...]
    message: str
    expected: str
    remedy: str


def conflicts(train: Train, strategy: Strategy) -> list[Conflict]:
    """Return everything in `train` that does not fit the rest of it, or the strategy."""
    rules = RULES if strategy in TRAINING_STRATEGIES else RULES_OF_PROGRAMS
    return [one for rule in rules for one in rule(train, strategy)]


def _steps_or_epochs(train: Train, _: Strategy) -> Iterator[Conflict]:
    if train.steps is not None and train.epochs is not None:
        message = f"`epochs` ({train.epochs}) beside `steps` ({train.steps}): both say how long to train"
        yield Conflict(
            ("epochs",), message, "one of the two", "remove `steps` or `epochs`; `--set train.steps=` removes the one in the file"
        )


def _schedule(train: Train, _: Strategy) -> Iterator[Conflict]:
    rate = train.learning_rate
    if rate is None:
        return
    allowed, required = _SCHEDULE_FIELDS[rate.schedule]
    given = [name for name in _ALL_SCHEDULE_FIELDS if getattr(rate, name) is not None]
    for name in given:
        if name not in allowed:
            owners = " or ".join(schedule for schedule, (fields, _) in _SCHEDULE_FIELDS.items() if name in fields)
            message = f"`{name}` means nothing to the schedule {rate.schedule}"
            yield Conflict(("learning_rate", name), message, f"schedule {owners}", f"remove `{name}`, or set `schedule` to {owners}")
    for name in required:
        if name not in given:
            message = f"the schedule {rate.schedule} needs `{name}`, and there is none"
            yield Conflict(("learning_rate",), message, f"`{name}`", f"add `{name}`")
    yield from _piecewise(rate)


def _piecewise(rate: LearningRate) -> Iterator[Conflict]:
    boundaries, factors = rate.boundaries or [], rate.factors or []
    if rate.schedule != "piecewise" or not boundaries or not factors:
        return
    if len(boundaries) != len(factors):
        message = f"{len(boundaries)} boundaries and {len(factors)} factors"
        yield Conflict(("learning_rate", "factors"), message, "one factor a boundary", f"give {len(boundaries)} factors")
    if sorted(set(boundaries)) != boundaries:
        message = f"the boundaries {boundaries} do not ascend"
        yield Conflict(("learning_rate", "boundaries"), message, "each larger than the one before", f"write {sorted(set(boundaries))}")


def _one_clip(train: Train, _: Strategy) -> Iterator[Conflict]:
    given = [name for name in _CLIPS if getattr(train.gradients, name) is not None]
    for name in given[1:]:
        message = f"`{name}` beside `{given[0]}`: gradients are cut in one way"
        yield Conflict(("gradients", name), message, f"one of {', '.join(_CLIPS)}", f"remove `{name}` or `{given[0]}`")


def _wire(train: Train, strategy: Strategy) -> Iterator[Conflict]:
    if train.gradients.wire != "float32" and not (STRATEGIES[strategy].all_reduces or STRATEGIES[strategy].variables_on_ps):
        message = f"gradients do not travel between tasks with strategy {strategy}"
        remedy = "remove `wire`"
        yield Conflict(("gradients", "wire"), message, "strategy multi_worker_mirrored or parameter_server", remedy)


def _embeddings(train: Train, strategy: Strategy) -> Iterator[Conflict]:
    if train.embeddings is None:
        return
    if STRATEGIES[strategy].on_devices or not STRATEGIES[strategy].trains:
        message = f"a step updates the whole matrix of embedding layers with strategy {strategy}"
        yield Conflict(("embeddings",), message, "another strategy", "remove `embeddings`, or change the strategy")
    for name in sorted({*train.embeddings.sharded} & {*train.embeddings.whole}):
        yield Conflict(("embeddings", "whole"), f"{name!r} is also in `sharded`", "each layer in one of them", f"remove {name!r} from one")


def _loss_scale(train: Train, strategy: Strategy) -> Iterator[Conflict]:
    if train.precision == "mixed_float16" and STRATEGIES[strategy].variables_on_ps:
        message = "mixed_float16 scales the loss step by step, which parameter servers do not do"
        yield Conflict(("precision",), message, "float32 or mixed_bfloat16", "write mixed_bfloat16, which needs no scaling")


def _determinism(train: Train, strategy: Strategy) -> Iterator[Conflict]:
    if train.deterministic and STRATEGIES[strategy].variables_on_ps:
        message = "on parameter_server gradients come in whatever order workers send them, so no two runs are alike"
        yield Conflict(("deterministic",), message, "another strategy", "remove `deterministic`, or change `strategy`")


def _early_stopping_direction(train: Train, _: Strategy) -> Iterator[Conflict]:
    rule = train.early_stopping
    if rule and direction(rule.metric, rule.mode) is None:
        message = f"{rule.metric!r} does not show whether more or less of it is better"
        yield Conflict(("early_stopping", "metric"), message, "`mode: max` or `mode: min` beside it", "add `mode: max`, if more is better")


def _early_stopping_patience(train: Train, _: Strategy) -> Iterator[Conflict]:
    if train.early_stopping and train.early_stopping.patience > _MAX_PATIENCE:
        message = f"{train.early_stopping.patience:,} evaluations are more than a run keeps beside the best one"
        yield Conflict(("early_stopping", "patience"), message, f"at most {_MAX_PATIENCE}", "write less, or evaluate less often")


def _mirrored_accumulation(train: Train, strategy: Strategy) -> Iterator[Conflict]:
    if STRATEGIES[strategy].on_devices and train.gradients.accumulate > _MAX_MIRRORED:
        message = f"{train.gradients.accumulate} batches a step: with mirrored each is a part of the graph of its own"
        remedy = "use larger batches, or another strategy"
        yield Conflict(("gradients", "accumulate"), message, f"at most {_MAX_MIRRORED} with mirrored", remedy)


def _unused(train: Train, _: Strategy) -> Iterator[Conflict]:
    entry = CATALOG.get(train.workload)
    if entry is None:
        return
    # By the value, not by what is set: the settings that tasks get are complete.
    default = Train(workload=train.workload)
    for name in entry.unused:
        if getattr(train, name) not in (getattr(default, name), getattr(entry.defaults, name)):
            message = f"`{name}` means nothing to {train.workload}"
            yield Conflict((name,), message, f"no `{name}`", f"remove `{name}`; docs/workloads.md has what it takes in `params`")


def _random_steps(train: Train, _: Strategy) -> Iterator[Conflict]:
    entry = CATALOG.get(train.workload)
    if entry is None or not entry.agent:
        return
    first = train.params.get("random_steps", entry.params.model_fields["random_steps"].default)
    steps = train.steps or entry.defaults.steps
    if isinstance(first, int) and steps and steps <= first:  # other cases are reported for params
        message = f"{steps} steps, and the first {first} are at random: nothing is learned"
        yield Conflict(("steps",), message, f"more than {first}", "raise `steps`, or lower `params.random_steps`")


def _program_settings(train: Train, strategy: Strategy) -> Iterator[Conflict]:
    # By the value, not by what is set: the settings that tasks get are complete.
    default = Train(workload=train.workload)
    for name in Train.model_fields:
        if name not in _PROGRAM_FIELDS and getattr(train, name) != getattr(default, name):
            message = f"`{name}` means nothing to strategy {strategy}, which runs a program and trains no model"
            remedy = f"remove `{name}`; put the program's arguments into `params`"
            yield Conflict((name,), message, f"{', '.join(_PROGRAM_FIELDS[:-1])} and {_PROGRAM_FIELDS[-1]} alone", remedy)


RULES: tuple[Callable[[Train, Strategy], Iterator[Conflict]], ...] = (
    _steps_or_epochs,
    _schedule,
    _one_clip,
    _wire,
    _embeddings,
    _loss_scale,
    _determinism,
    _early_stopping_direction,
    _early_stopping_patience,
    _mirrored_accumulation,
    _unused,
    _random_steps,
)
RULES_OF_PROGRAMS: tuple[Callable[[Train, Strategy], Iterator[Conflict]], ...] = (_program_settings,)
