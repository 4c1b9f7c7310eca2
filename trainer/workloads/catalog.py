"""The built-in workloads and programs by name: their code, defaults and parameters. Imports no TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from trainer.settings import CheckpointSettings, Evaluation, Export, Settings, Summaries, Train
from trainer.strategies import TRAINING_STRATEGIES, Strategy
from trainer.workloads.errors import WorkloadError

Params = TypeVar("Params", bound=Settings)


class MnistMlpParams(Settings):
    """Parameters of mnist_mlp."""

    hidden_units: int = Field(100, ge=1, le=65536, description="Units of the hidden layer.")
    learning_rate: float = Field(0.01, gt=0, description="Adam's learning rate.")


class MnistParams(Settings):
    """Parameters of mnist."""

    hidden_units: int = Field(500, ge=1, le=65536, description="Units of the hidden layer.")
    learning_rate: float = Field(0.001, gt=0, description="Adam's learning rate.")
    dropout_keep: float = Field(0.9, gt=0, le=1, description="Probability that dropout keeps a unit.")


class Cifar10Params(Settings):
    """Parameters of cifar10."""

    learning_rate: float = Field(0.1, gt=0, description="SGD's learning rate; a tenth of it after each 350 epochs.")
    moving_average: float = Field(
        0.9999, ge=0, lt=1, description="Decay of the moving averages of the variables; evaluations use these averages."
    )
    filters: int = Field(64, ge=1, le=4096, description="Filters of each of the two convolutions.")


class LinearRegressionParams(Settings):
    """Parameters of linear_regression."""

    learning_rate: float = Field(0.001, gt=0, description="SGD's learning rate.")


class ClickThroughParams(Settings):
    """Parameters of click_through."""

    rows: int = Field(10_000, ge=1, le=2**31, description="Rows of each category's table.")
    dimension: int = Field(16, ge=1, le=4096, description="Numbers in a row of the deep part; one of the wide part has 1.")
    hidden_units: list[Annotated[int, Field(ge=1, le=65536)]] = Field(
        default=[64, 32], min_length=1, max_length=16, description="Units of each hidden layer."
    )
    learning_rate: float = Field(0.02, gt=0, description="Adagrad's learning rate.")
    examples: int = Field(1_000_000, ge=1, le=10**12, description="Training examples of the synthetic set.")
    eval_examples: int = Field(20_000, ge=1, le=10**9, description="Held-out examples that an evaluation sees, the first ones.")
    zipf_exponent: float = Field(
        1.5, ge=0, le=10, description="How fast ids of the synthetic set get rarer with their rank; 0 is not at all."
    )


class GridworldDqnParams(Settings):
    """Parameters of gridworld_dqn."""

    boards: int = Field(16, ge=1, le=1024, description="Boards that each task that plays has, and moves at once.")
    filters: list[Annotated[int, Field(ge=1, le=1024)]] = Field(
        default=[32, 64, 64], min_length=3, max_length=3, description="Filters of the first three convolutions."
    )
    hidden: int = Field(
        512,
        ge=2,
        le=8192,
        multiple_of=2,
        description="Filters of the last convolution: half of them for the advantage, half for the value.",
    )
    learning_rate: float = Field(0.0001, gt=0, description="Adam's learning rate.")
    gamma: float = Field(0.99, ge=0, lt=1, description="Discount factor.")
    replay: int = Field(50_000, ge=10_000, le=10_000_000, description="Transitions (moves) that the replay buffer holds.")
    random_steps: int = Field(10_000, ge=100, le=1_000_000_000, description="First steps, all at random; no updates before their end.")
    epsilon_start: float = Field(1.0, ge=0, le=1, description="Probability of a random move after them.")
    epsilon_end: float = Field(0.1, ge=0, le=1, description="Probability of a random move in the end.")
    epsilon_steps: int = Field(10_000, ge=1, le=1_000_000_000, description="Steps over which it falls from one to the other.")
    update_every: int = Field(4, ge=1, le=10_000, description="Steps to an update.")
    target_rate: float = Field(
        0.001,
        gt=0,
        le=1,
        description="Soft-update rate (tau) of the target network, in each update.",
    )


class PlacementParams(Settings):
    """Parameters of placement."""

    x: float = Field(2.0, description="The number that both tasks begin with.")


class MapReduceParams(Settings):
    """Parameters of map_reduce."""

    count: int = Field(10_000_000, ge=1, le=1_000_000_000, description="Numbers in the vector.")
    slices: Literal["unequal", "speed"] = Field(
        "unequal", description="How it is cut: `unequal` in the ratio 1:2:3:..., `speed` in proportion to the tasks' measured speeds."
    )


class MatmulParams(Settings):
    """Parameters of matmul."""

    size: int = Field(1000, ge=1, le=30_000, description="N: the matrix is N x N.")
    devices: list[str] = Field(
        default=["all"],
        min_length=1,
        description="The devices, one after the other: cpu, gpu:0, worker-1, worker-0/gpu:1; all is each task's best.",
    )
    repeats: int = Field(5, ge=1, le=1000, description="Repetitions of each part after a first time; the median is reported.")


class LifeParams(Settings):
    """Parameters of life."""

    pattern: str = Field("random", min_length=1, description="`random`, or an RLE file, from the directory in `code`.")
    height: int = Field(50, ge=1, le=10_000, description="Rows of the torus.")
    width: int = Field(50, ge=1, le=10_000, description="Columns of the torus.")
    density: float = Field(0.2, ge=0, le=1, description="Part of the cells that live at the start of `random`.")
    generations: int = Field(5000, ge=1, le=10_000_000, description="Maximum number of generations; it ends earlier when a state recurs.")
    frames: int = Field(
        300,
        ge=0,
        le=10_000,
        description="Number of generations in the animation, from the first on; fewer for large boards. 0 writes no animation.",
    )
    cell: int = Field(4, ge=1, le=64, description="Pixels of a cell's side in pictures; fewer for large boards.")


@dataclass(frozen=True)
class Entry:
    """One built-in workload or program: the path of its class or function, a summary, and its default settings.

    `unused` are the settings of `train` that do not apply to it. An `agent` learns from its own actions.
    """

    import_path: str
    summary: str
    params: type[Settings]
    defaults: Train
    strategies: tuple[Strategy, ...] = TRAINING_STRATEGIES
    unused: tuple[str, ...] = ()
    agent: bool = False


def _program(name: str, summary: str, params: type[Settings]) -> Entry:
    return Entry(f"trainer.programs.{name}:{name}", summary, params, Train(workload=name), ("manual",))


CATALOG: dict[str, Entry] = {
    "mnist_mlp": Entry(
        import_path="trainer.workloads.mnist_mlp:MnistMlp",
        summary="MLP 784-100-10, the distributed benchmark",
        params=MnistMlpParams,
        defaults=Train(
            workload="mnist_mlp",
            steps=2000,
            batch_size=100,
            checkpoint=CheckpointSettings(every_seconds=30),
            evaluate=Evaluation(every_steps=500),
            summaries=Summaries(every_steps=100, profile_every_steps=0),
        ),
    ),
    "mnist": Entry(
        import_path="trainer.workloads.mnist:Mnist",
        summary="MLP 784-500-10 with dropout and everything TensorBoard shows",
        params=MnistParams,
        defaults=Train(
            workload="mnist",
            steps=1000,
            batch_size=100,
            checkpoint=CheckpointSettings(every_steps=100),
            evaluate=Evaluation(every_steps=10),
            summaries=Summaries(every_steps=10, profile_every_steps=100),
        ),
    ),
    "cifar10": Entry(
        import_path="trainer.workloads.cifar10:Cifar10",
        summary="CNN on small images, with augmentation and averaged weights",
        params=Cifar10Params,
        defaults=Train(
            workload="cifar10",
            steps=100_000,
            batch_size=128,
            report_every_steps=10,
            checkpoint=CheckpointSettings(every_steps=1000),
            evaluate=Evaluation(every_steps=1000, batch_size=500),
            summaries=Summaries(every_steps=100, profile_every_steps=0),
        ),
    ),
    "linear_regression": Entry(
        import_path="trainer.workloads.linear_regression:LinearRegression",
        summary="one weight and one bias, the smallest run with recovery",
        params=LinearRegressionParams,
        defaults=Train(
            workload="linear_regression",
            steps=200_000,  # 2,000 epochs of 100 points
            batch_size=1,
            checkpoint=CheckpointSettings(every_seconds=50, keep=1),
            evaluate=Evaluation(every_steps=20_000),
            summaries=Summaries(every_steps=1000, profile_every_steps=0),
        ),
    ),
    "click_through": Entry(
        import_path="trainer.workloads.click_through:ClickThrough",
        summary="wide and deep on Criteo's click logs: embedding tables",
        params=ClickThroughParams,
        defaults=Train(
            workload="click_through",
            steps=2000,
            batch_size=256,
            checkpoint=CheckpointSettings(every_seconds=60),
            evaluate=Evaluation(every_steps=500),
            summaries=Summaries(every_steps=100, profile_every_steps=0),
        ),
    ),
    "gridworld_dqn": Entry(
        import_path="trainer.workloads.gridworld_dqn:GridworldDqn",
        summary="deep Q-learning of GridWorld: workers play, the chief learns",
        params=GridworldDqnParams,
        defaults=Train(
            workload="gridworld_dqn",
            steps=500_000,  # 10,000 episodes of 50
            batch_size=32,
            checkpoint=CheckpointSettings(every_steps=50_000),
            evaluate=Evaluation(every_steps=50_000),
            summaries=Summaries(every_steps=5000, profile_every_steps=0),
            export=Export(formats=[]),  # it plays; it does not serve
        ),
        strategies=("single", "parameter_server"),
        unused=("epochs", "data", "sync", "learning_rate", "gradients", "precision", "jit_compile", "export"),
        agent=True,
    ),
    "placement": _program("placement", "two additions on two tasks, brought together on the chief", PlacementParams),
    "map_reduce": _program("map_reduce", "the mean of a vector that is cut over the tasks", MapReduceParams),
    "matmul": _program("matmul", "a matrix times its transpose on devices by name: speed, and what moving the data costs", MatmulParams),
    "life": _program("life", "Conway's Game of Life on a torus, a strip of it on each task", LifeParams),
}


def parse_params(model: type[Params], params: Mapping[str, Any]) -> Params:
    """Return `params` as `model`. Raises WorkloadError naming every parameter that is wrong."""
    try:
        return model.model_validate(dict(params))
    except ValidationError as error:
        wrong = [
            f"train.params.{'.'.join(str(part) for part in one['loc'])}: {one['msg']}, found {one['input']!r}" for one in error.errors()
        ]
        raise WorkloadError("; ".join([*wrong, f"the parameters are {', '.join(model.model_fields)}"])) from error


def with_defaults(train: Train, strategy: Strategy = "single") -> Train:
    """Fill in settings that a spec's `train` left out, from its workload's defaults; USER_DEFAULTS for a user's own workload, none for a program."""
    entry = CATALOG.get(train.workload)
    general = USER_DEFAULTS if strategy in TRAINING_STRATEGIES else Train(workload=train.workload)
    base = entry.defaults if entry else general
    merged = _merge(base.model_dump(), train.model_dump(exclude_unset=True))
    if train.epochs is not None and train.steps is None:
        merged["steps"] = None
    return Train.model_validate(merged)


USER_DEFAULTS = Train(
    workload="user.code:Class",
    steps=1000,
    batch_size=32,
    checkpoint=CheckpointSettings(every_seconds=60),
    summaries=Summaries(every_steps=100, profile_every_steps=0),
)


def _merge(base: dict[str, object], overrides: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in overrides.items():
        below = merged.get(key)
        # A section is merged key by key; `params` belongs to the workload as a whole.
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) and key != "params" else value
    return merged
