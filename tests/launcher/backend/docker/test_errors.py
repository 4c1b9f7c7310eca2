"""Errors as engines word them, and our messages."""

import pytest

from launcher.backend.docker.errors import explain
from tests.golden_messages import Golden

ENGINE_MESSAGES = {
    "port": "Error response from daemon: driver failed programming external connectivity on endpoint mnist-ps-tensorboard-1: "
    "Bind for 127.0.0.1:6006 failed: port is already allocated",
    "process": "Error response from daemon: failed to bind host port 127.0.0.1:6006/tcp: address already in use",
    "disk": "Error response from daemon: mkdir /var/lib/docker/overlay2/1f: no space left on device",
    "gpu": 'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
    "cdi": "Error response from daemon: failed to discover GPU vendor from CDI: no known GPU vendor found",
    "plugin": "docker: 'compose' is not a docker command.\nSee 'docker --help'",
    "fewer gpus": "Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: runc "
    "create failed: unable to start container process: error during container init: error running prestart hook #0: exit status 1, stdout: , "
    "stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: device error: 1: unknown device: unknown",
    "plugin, by a flag": "unknown flag: --short\nSee 'docker --help'.",
    "image": "Error response from daemon: pull access denied for mine, repository does not exist or may require 'docker login'",
    "cpus": "Error response from daemon: Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
    "sysctl": "Error response from daemon: OCI runtime create failed: container_linux.go:296: starting container process caused "
    '"process_linux.go:398: container init caused \\"open /proc/sys/net/ipv4/tcp_retries2: no such file or directory\\"": unknown',
    "bind": 'Error response from daemon: invalid mount config for type "bind": bind source path does not exist: /home/me/src',
    "networks": "Error response from daemon: all predefined address pools have been fully subnetted",
    "engine": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    "init": 'service "chief-fetch" didn\'t complete successfully: exit 1',
}
EXPECTED = {
    "port": ("port is taken", "--set tensorboard.port"),
    "process": ("port is taken", "--set tensorboard.port"),
    "disk": ("disk is full", "docker system df"),
    "gpu": ("no GPUs", "NVIDIA Container Toolkit"),
    "cdi": ("no GPUs", "NVIDIA Container Toolkit"),
    "plugin": ("no Compose plugin", "docker compose version"),
    "fewer gpus": ("more GPUs than", "`gpus` of a role"),
    "plugin, by a flag": ("no Compose plugin", "docker compose version"),
    "image": ("the image was not found", "launcher image build"),
    "cpus": ("more cores", "`cpu` of its role"),
    "sysctl": ("cannot set net.ipv4.tcp_retries2", "Linux 4.6"),
    "bind": ("does not find a directory of the spec", "train.data"),
    "networks": ("no free address range", "docker network prune"),
    "init": ("an init container ended with an error", "`init_containers`"),
    "engine": ("does not answer", "docker info"),
}


@pytest.mark.parametrize("case", ENGINE_MESSAGES)
def test_a_known_error_has_a_message_and_a_remedy(case: str) -> None:
    error = explain(ENGINE_MESSAGES[case], "starting the containers of mnist")
    message, remedy = EXPECTED[case]
    assert message in error.message
    assert remedy in error.remedy


def test_an_unknown_error_is_quoted(golden: Golden) -> None:
    error = explain("one\nError response from daemon: the moon is full\n", "starting the containers of mnist")
    golden(error.message)
    assert error.remedy
