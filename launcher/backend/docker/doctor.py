"""Checks whether the Docker engine in use can run a cluster of containers."""

import json
from collections.abc import Iterator

from launcher import docker_cli, images
from launcher.backend.check_results import CheckRequest, CheckResult, error_result, ok, problem, warning
from launcher.backend.docker.engine import compose_version, endpoint
from launcher.backend.docker.preparation import check_directories
from launcher.errors import LauncherError
from launcher.formats import decimal_size
from launcher.spec.models import ClusterSpec
from launcher.spec.role_programs import roles_of


def examine(request: CheckRequest) -> Iterator[CheckResult]:
    """Yield the results of the checks; if the engine does not answer, nothing else can be checked."""
    try:
        info = json.loads(docker_cli.docker("info", "--format", "{{json .}}"))
        yield ok(
            "engine",
            f"Docker {info.get('ServerVersion')} at {endpoint().host}, {info.get('NCPU')} cores, {decimal_size(int(info.get('MemTotal') or 0))}",
        )
    except LauncherError as error:
        yield error_result("engine", error)
        return
    try:
        yield ok("compose", f"version {compose_version()}")
    except LauncherError as error:
        yield error_result("compose", error)
    for name in [images.DEFAULT_IMAGE] if request.spec is None else images.all_for(request.spec):
        yield _image(name)
    if request.spec is not None:
        yield from _fits(request.spec, info)


def _image(name: str) -> CheckResult:
    image = images.find(name)
    if image is not None:
        return ok("image", f"{name}, {decimal_size(image.size)}")
    if images.is_trainer_image(name):
        return warning("image", f"the engine does not have {name} yet", f"`{images.build_command(name)}` builds it; `up` does so by itself")
    return warning("image", f"the engine does not have {name} yet", "`up` pulls it; `docker pull` shows whether that works")


def _fits(spec: ClusterSpec, info: dict[str, object]) -> Iterator[CheckResult]:
    try:
        check_directories(spec, endpoint())
    except LauncherError as error:
        yield error_result("directories", error)
    roles = list(roles_of(spec).values())
    cores = int(str(info.get("NCPU") or 0))
    for role in roles:
        if role.cpu is not None and role.cpu > cores:
            yield problem("cores", f"a task asks for {role.cpu:g}, the engine's machine has {cores}", "ask for fewer, or leave cpu out")
    runtimes = info.get("Runtimes")
    devices = json.dumps(info.get("DiscoveredDevices") or "") + json.dumps(info.get("CDISpecDirs") or "")
    if any(role.gpus for role in roles) and "nvidia" not in json.dumps(runtimes) + devices:
        yield problem(
            "GPUs", "the spec asks for GPUs, and the engine has no NVIDIA runtime", "install the NVIDIA Container Toolkit on its machine"
        )
