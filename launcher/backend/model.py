"""The protocol of a backend: the calls behind the CLI's verbs."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from launcher.errors import LauncherError
from launcher.plan.models import Plan
from launcher.runs.artifacts import Artifact, ArtifactStream
from launcher.runs.status import Location, LogLine, RunStatus

if TYPE_CHECKING:
    from launcher.spec.models import ClusterSpec
    from trainer.stacks import ProcessStacks


@dataclass(frozen=True)
class TensorBoardAddress:
    """TensorBoard's address. If `serve` is set, the caller must call it: it serves TensorBoard until the process is interrupted."""

    url: str
    serve: Callable[[], None] | None = None


@dataclass(frozen=True)
class ClusterRef:
    """The context and namespace that the user named, for a backend that has several; None: where the run was last started, else the default."""

    context: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class PlannedRun:
    """A run to be started: its plan, and the spec that the plan was made from, in JSON form."""

    plan: Plan
    spec: dict[str, Any]


def spec_of(dumped: dict[str, Any]) -> "ClusterSpec":
    """Parse a stored spec, such as `PlannedRun.spec` or the result of `Backend.spec`.

    Raises LauncherError if another version of the launcher has written it, with fields or values that this one does not know.
    """
    from pydantic import ValidationError  # which most calls do not need

    from launcher.spec.models import ClusterSpec

    try:
        return ClusterSpec.model_validate_json(json.dumps(dumped))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise LauncherError(
            f"the stored spec of {dumped.get('name', 'the run')} is of another version of the launcher: "
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            "use the version that has started the run",
        ) from error


class Backend(Protocol):
    """Runs plans. Every call that fails raises launcher.errors.LauncherError with a remedy."""

    def start(self, run: PlannedRun, *, is_cancelled: Callable[[], bool] | None = None) -> None:
        """Start the run; return once every task has started, or on a cluster is starting.

        `is_cancelled` returns whether the start was cancelled, for example by Ctrl-C. A start that waits polls it, and then raises
        LauncherError and leaves no task, or returns if the tasks have started meanwhile: the caller stops the run. Without `is_cancelled`
        the run is in the background and outlives this process.
        """

    def status(self, name: str) -> RunStatus:
        """Return the status of the run.

        Never waits for the run itself: only until the engine or the cluster answers, or at most ten seconds for the end of tasks whose directory
        was removed.
        """

    def spec(self, name: str) -> dict[str, Any] | None:
        """Return the spec of the run's last start, in JSON form; None if it is not known."""

    def runs(self) -> list[RunStatus]:
        """Return the status of every known run, newest first."""

    def logs(self, name: str, *, tasks: list[str], follow: bool, since: float | None, tail: int | None) -> Iterator[LogLine]:
        """Yield lines of the tasks in order of time; with `follow` until the run has ended."""

    def stacks(self, name: str, task: str) -> "tuple[ProcessStacks, ...]":
        """Return the current Python stacks of a task's processes. Raises LauncherError if no process can be asked for them."""

    def stop(self, name: str, *, now: bool = False, report: Callable[[str], object] | None = None) -> dict[str, int]:
        """Ask every task to save and stop, or kill it if `now`. Returns when only its data and record are left. Idempotent.

        `report`, if there is one, is called, in the same thread, with messages for people: which tasks did not save, or perhaps did not, and why.
        Returns how many objects of each kind were removed, such as {"container": 4, "network": 1}; empty if there were none.
        """

    def delete(self, name: str) -> None:
        """Delete the run's stored data. Raises UsageError while the run is running."""

    def rename(self, name: str, new_name: str) -> tuple[Location, ...]:
        """Rename the stored data of a stopped run to `new_name`, out of a new run's way.

        Returns the new locations; none if the run had no stored data.
        """

    def fetch(self, name: str, artifact: Artifact) -> AbstractContextManager[ArtifactStream]:
        """Open an artifact of the run for a `with` block. Raises UsageError if there is none."""


# Optional protocols, which only some backends implement: check with isinstance.


@runtime_checkable
class Prepares(Protocol):
    """A backend whose starts need a preparation that may take long, such as building an image."""

    def prepare(self, run: PlannedRun) -> Iterator[str]:
        """Prepare the start; yield messages for people."""


@runtime_checkable
class Reserves(Protocol):
    """A backend whose runs can be started from several machines."""

    def reserve(self, run: PlannedRun) -> AbstractContextManager[None]:
        """Keep other machines from starting the run for a `with` block, which calls `start`.

        Raises UsageError if another machine is starting the run, or if it is running.
        """


@runtime_checkable
class Reconciles(Protocol):
    """A backend that leaves work to the launcher that watches a run."""

    def reconcile(self, name: str) -> list[str]:
        """Do that work for a run, called repeatedly while it is watched; return messages for people."""

    def finish(self, name: str) -> Iterator[str]:
        """Complete pending work for a finished run, within a bounded time; yield messages for people."""


@runtime_checkable
class ServesTensorBoard(Protocol):
    """A backend whose logs are not in a directory of this machine."""

    def tensorboard(self, name: str, *, host: str | None, port: int | None) -> TensorBoardAddress:
        """Have TensorBoard serve the run's logs; return its address."""


@runtime_checkable
class ComparesObjects(Protocol):
    """A backend whose runs are objects of an API, which can be compared with those that a start would create."""

    def differences(self, run: PlannedRun) -> Iterator[str]:
        """Yield the lines of a unified diff from the existing objects to those that `start` would apply; none if they are equal."""
