"""The targets of plans: addresses of tasks, paths of files, and unsupported fields of the spec. A new target is a row."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launcher.plan import role_rules, unsupported
from launcher.plan.addresses import LOOPBACK, PORT
from launcher.plan.container_paths import CONTAINER_DATA, CONTAINER_RUNS, CONTAINER_SCRATCH
from launcher.plan.models import Target
from launcher.spec.models import ClusterSpec


@dataclass(frozen=True)
class TargetRules:
    """One target. `display_name`: its name in messages. `address`: run, task, the task's position among those of the cluster -> host:port.

    `unsupported`: the functions that name the fields of a spec that it does not support. `in_containers`: tasks run in containers,
    with their own paths, else as processes of this machine. `parent` starts the trainer's parent in an image without the trainer.
    `mounts_data`: a directory of this machine is mounted as `train.data`. `has_storage_mount`: the spec's `storage.mount` is obeyed.
    """

    display_name: str
    address: Callable[[str, str, int], str]
    unsupported: tuple[Callable[[ClusterSpec], list[str]], ...]
    in_containers: bool = True
    parent: tuple[str, ...] = ()
    mounts_data: bool = False
    has_storage_mount: bool = False

    def notices(self, spec: ClusterSpec) -> list[str]:
        """Return one sentence for each field of a spec that the target does not support, without the target's name."""
        return [notice for rule in self.unsupported for notice in rule(spec)]

    def run_dir(self, runs: Path, name: str) -> str:
        """Return the run directory as the tasks of a run see it; `runs` holds the run directories of local runs."""
        return f"{CONTAINER_RUNS}/{name}" if self.in_containers else str(runs.absolute() / name)

    def scratch_dir(self, run_dir: str) -> str:
        """Return the directory of the files by which tasks of a run communicate."""
        return CONTAINER_SCRATCH if self.in_containers else f"{run_dir}/launcher/scratch"

    def data_dir(self, data: str) -> str:
        """Return `train.data` as the tasks see it: a path, a word or a URL."""
        return CONTAINER_DATA if self.mounts_data and os.path.isabs(data) else data  # noqa: PTH117 - may be a word or a URL


TARGET_RULES: dict[Target, TargetRules] = {
    "local": TargetRules(
        "on this machine",
        lambda _run, _task, position: f"{LOOPBACK}:{PORT + position}",  # until the backend reserves ports
        (unsupported.extra_containers, unsupported.volumes),
        in_containers=False,
    ),
    "docker": TargetRules(
        "in Compose",
        lambda _run, task, _position: f"{task}:{PORT}",
        (unsupported.volumes_of_kubernetes, unsupported.run_volume),
        parent=role_rules.PARENT_IN_VARIABLE,
        mounts_data=True,
    ),
    "kubernetes": TargetRules(
        "on Kubernetes",
        # The name that an Indexed Job gives a pod, in the run's headless Service; relative, so it is valid in any namespace.
        lambda run, task, _position: f"{run}-{task}{'' if task[-1].isdigit() else '-0'}.{run}:{PORT}",
        (unsupported.env_file, unsupported.tensorboard_host),
        parent=role_rules.PARENT_IN_FILE,
        has_storage_mount=True,
    ),
}
