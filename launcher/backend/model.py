"""The protocol of a backend: the calls behind the CLI's verbs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from launcher.plan.models import Plan
from launcher.runs.status import Location, LogLine, RunStatus
from launcher.runs.stored import Artifact, Stored

if TYPE_CHECKING:
    from trainer.stacks import ProcessStacks


@dataclass(frozen=True)
class TensorBoardAddress:
    """The address of TensorBoard; `serve`, if there is one, has to be called and serves it until the process is interrupted."""

    url: str
    serve: Callable[[], None] | None = None


@dataclass(frozen=True)
class ClusterRef:
    """Which cluster and namespace of it, for a backend that has several; where left out, where the run was started last, else the user's own."""

    context: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class PlannedRun:
    """A run to be started: its plan, and the spec, as dumped, that this was made of."""

    plan: Plan
    spec: dict[str, Any]


class Backend(Protocol):
    """Runs plans. Every call raises launcher.errors.LauncherError with a remedy when it cannot do its part."""

    def start(self, run: PlannedRun, *, still_wanted: Callable[[], bool] | None = None) -> None:
        """Start the run and return as soon as it is on its way. Without `still_wanted` it is in the background, and outlives this process.

        `still_wanted` returns whether the launcher in the foreground still wants the run. A start that waits for an earlier run's remains to go
        polls it; once it returns False, nothing is started.
        """

    def status(self, name: str) -> RunStatus:
        """Return the status of the run. Never blocks on the run itself."""

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec, as dumped, that the run was started with last; None where that is not known."""

    def runs(self) -> list[RunStatus]:
        """Return the status of every run that is known, newest first."""

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None, tail: int | None) -> Iterator[LogLine]:
        """Yield lines of the tasks in order of time; with `follow` until the run has ended."""

    def stacks(self, name: str, task: str) -> "tuple[ProcessStacks, ...]":
        """Return the Python stacks of a task's processes at this moment. Raises LauncherError if no process can be asked for them."""

    def stop(self, name: str, *, now: bool = False, report: Callable[[str], object] = str) -> dict[str, int]:
        """Ask every task to save and stop; `now` kills. Returns when nothing of the run is left. Idempotent.

        `report` is called, in the same thread, with what a person should know: which tasks did not save, or may not, and why.
        Returns how many of each kind of object were removed, such as {"container": 4, "network": 1}; empty where a run has none.
        """

    def delete(self, name: str) -> None:
        """Delete what the run stored. Refuses while it runs."""

    def rename(self, name: str, new_name: str) -> tuple[Location, ...]:
        """Rename the stored data of a stopped run to `new_name`, out of a new run's way.

        Returns where it is now; nothing where it is gone, or the run had no volume.
        """

    def fetch(self, name: str, artifact: Artifact) -> AbstractContextManager[Stored]:
        """Open for a `with` block what the run has stored of a kind. Raises UsageError when there is nothing of it."""


# Offered by some backends beside these calls: ask with isinstance.


@runtime_checkable
class Prepares(Protocol):
    """A backend whose starts need something that may take long, such as an image."""

    def prepare(self, run: PlannedRun) -> Iterator[str]:
        """Make what a start needs first; yield what a person should know, as it comes."""


@runtime_checkable
class Reserves(Protocol):
    """A backend whose runs other machines may start, too."""

    def reserve(self, run: PlannedRun) -> AbstractContextManager[None]:
        """Keep other machines from starting the run for a `with` block, until `start` in it has.

        Raises UsageError when one starts it, or it is at work.
        """


@runtime_checkable
class Reconciles(Protocol):
    """A backend that leaves work to the launcher that watches a run."""

    def reconcile(self, name: str) -> list[str]:
        """Do that work for a run, called repeatedly while it is watched; return what people should know of it."""

    def finish(self, name: str) -> Iterator[str]:
        """Complete pending work for a finished run, within a bounded time; yield what people should know of it."""


@runtime_checkable
class ServesTensorBoard(Protocol):
    """A backend whose logs are not in a directory of this machine."""

    def tensorboard(self, name: str, *, host: str | None, port: int | None) -> TensorBoardAddress:
        """Have TensorBoard serve the run's logs and say where."""


@runtime_checkable
class ComparesObjects(Protocol):
    """A backend whose runs are objects of an API, which can be compared with those that a start would make."""

    def differences(self, run: PlannedRun) -> Iterator[str]:
        """Yield the lines of a unified diff, from what is there to what `start` would apply; none where nothing differs."""
