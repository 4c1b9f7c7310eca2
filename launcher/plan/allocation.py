"""Shares a machine out between the tasks that run on it: CPU threads and GPUs. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from launcher.plan.models import Resources


def threads(wanted: Mapping[str, float | None], cores: int) -> dict[str, int]:
    """Return each task's number of threads: `cpu` rounded where given, and a fair share of the rest; at least 1.

    `wanted` is task name -> cores asked for, None where the spec is silent.
    """
    given = {name: max(1, round(cpu)) for name, cpu in wanted.items() if cpu is not None}
    others = [name for name in wanted if name not in given]
    rest = max(0, cores - sum(given.values()))
    each, left_over = divmod(rest, len(others)) if others else (0, 0)
    shared = {name: max(1, each + (1 if place < left_over else 0)) for place, name in enumerate(others)}
    return {name: given.get(name) or shared[name] for name in wanted}


@dataclass(frozen=True)
class GpuShares:
    """Which GPUs each task gets, by name; `short` are the tasks that asked for GPUs and get none."""

    visible: dict[str, tuple[str, ...]]
    short: tuple[str, ...]


def gpus(wanted: Mapping[str, Resources], available: Sequence[str], *, alike: Collection[str] = ()) -> GpuShares:
    """Give each task its own GPUs, first come first served; a task gets all it asked for, or none.

    Of the tasks in `alike` all do, or none.
    """
    given = _first_come(wanted, available)
    if not set(alike).intersection(given.short):
        return given
    others = _first_come({name: Resources() if name in alike else one for name, one in wanted.items()}, available)
    without = [name for name, one in wanted.items() if name in others.short or (name in alike and one.gpus)]
    return GpuShares(others.visible, tuple(without))


def _first_come(wanted: Mapping[str, Resources], available: Sequence[str]) -> GpuShares:
    free = list(available)
    visible: dict[str, tuple[str, ...]] = {}
    short = []
    for name, resources in wanted.items():
        fits = resources.gpus <= len(free)
        visible[name] = tuple(free[: resources.gpus]) if fits else ()
        if fits:
            del free[: resources.gpus]
        else:
            short.append(name)
    return GpuShares(visible, tuple(short))
