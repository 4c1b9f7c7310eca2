"""The strategies and their properties, a row each. Imports nothing else of the trainer: the parent of a user's program needs it, too."""

from __future__ import annotations

from typing import Dict, Literal, Mapping, NamedTuple, Tuple

Strategy = Literal["single", "mirrored", "multi_worker_mirrored", "parameter_server", "manual"]
# The effect of a task's end on its peers. `alone`: none. `all`: they exit 75 and are restarted, too; under parameter_server and manual the
# only such peer is the chief. Training then continues from the last checkpoint; manual has none, and begins again.
Scope = Literal["alone", "all"]


class Traits(NamedTuple):
    """The properties of a strategy."""

    mandatory: Tuple[str, ...]  # noqa: UP006 - roles
    optional: Tuple[str, ...]  # noqa: UP006 - roles
    restarts: Mapping[str, Scope]  # role -> which tasks restart with a task of the role
    # The least TF_NUM_INTEROP_THREADS: with fewer, a task's data pipeline and the loop that reads it can wait for each other forever.
    min_inter_op_threads: int
    trains: bool = True  # a model; else it runs a program that places its operations itself
    uses_servers: bool = False  # its ps and workers are TensorFlow servers, which run the chief's operations until it stops them
    all_reduces: bool = False  # its tasks exchange gradients with each other in every step, by an all-reduce
    on_devices: bool = False  # its replicas are devices of one task

    @property
    def single_replica(self) -> bool:
        """Whether one replica trains, in one task."""
        return self.trains and not (self.uses_servers or self.all_reduces or self.on_devices)

    @property
    def variables_on_ps(self) -> bool:
        """Whether the variables of the model it trains are on parameter servers."""
        return self.trains and self.uses_servers


# Roles: https://www.tensorflow.org/guide/distributed_training; in multi_worker_mirrored worker-0 is the chief if the cluster names none.
STRATEGIES: Dict[Strategy, Traits] = {  # noqa: UP006
    "single": Traits(("chief",), ("evaluator",), {"chief": "alone", "evaluator": "alone"}, 1),
    "mirrored": Traits(("chief",), ("evaluator",), {"chief": "alone", "evaluator": "alone"}, 2, on_devices=True),
    "multi_worker_mirrored": Traits(
        ("worker",), ("chief", "evaluator"), {"chief": "all", "worker": "all", "evaluator": "alone"}, 1, all_reduces=True
    ),
    "parameter_server": Traits(
        ("chief", "worker", "ps"),
        ("evaluator",),
        {"chief": "alone", "worker": "alone", "ps": "all", "evaluator": "alone"},
        4,
        uses_servers=True,
    ),
    "manual": Traits(("chief", "worker"), ("ps",), {"chief": "alone", "worker": "all", "ps": "all"}, 4, trains=False, uses_servers=True),
}
TRAINING_STRATEGIES: Tuple[Strategy, ...] = tuple(name for name, traits in STRATEGIES.items() if traits.trains)  # noqa: UP006
SERVER_STRATEGIES = frozenset(name for name, traits in STRATEGIES.items() if traits.uses_servers)


def is_server(strategy: str, role: str) -> bool:
    """Return whether a task is a TensorFlow server, which runs its chief's operations."""
    return strategy in SERVER_STRATEGIES and role in {"ps", "worker"}


def guess_strategy(tasks: int, *, has_ps: bool) -> Strategy:
    """Guess the strategy of a user's program without settings, from its number of tasks, and whether there is a ps."""
    if has_ps:
        return "parameter_server"
    return "multi_worker_mirrored" if tasks > 1 else "single"
