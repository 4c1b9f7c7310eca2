"""Messages about builds that fail; the outputs were written by the engine and pip."""

import pytest

from launcher.image_build.failures import failure

METADATA = " > [internal] load metadata for docker.io/library/python:9:\nERROR: failed to solve: dial tcp: lookup: no such host"
MANIFEST = 'ERROR: failed to solve: failed to do request: Head "https://a.b/v2/python/manifests/9": dial tcp: lookup a.b: no such host'
PIP = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]"
)


@pytest.mark.parametrize(
    "output, message, remedy",
    [
        (METADATA, "does not have the base image base:1", "--base-image"),
        (MANIFEST, "does not have the base image base:1", "--base-image"),
        ("ERROR: BuildKit is enabled but the buildx component is missing or broken.", "has no BuildKit", "docker-buildx"),
        ("ERROR: write /x: no space left on device", "disk is full", "docker system df"),
        (PIP, "certificate is not trusted", "--ca-file"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "differ from the lock file's", "--pip-config"),
        ("ERROR: HTTP error 401 while getting x\n401 Client Error: Unauthorized for url", "asks for a login", "--pip-config"),
        ("[Errno -3] Temporary failure in name resolution", "cannot be reached", "--build-arg HTTPS_PROXY"),
        ("ERROR: No matching distribution found for tensorflow-cpu==2.21.0", "lacks a package of the lock file", "3.11 to 3.13"),
        ("/usr/bin/python: No module named venv", "base image base:1 lacks", "official python images"),
        ("exec /bin/sh: exec format error", "another processor architecture", "DOCKER_DEFAULT_PLATFORM"),
        ("ERROR: Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?", "does not answer", "docker info"),
        ("an unknown failure", "an unknown failure", "--verbose"),
    ],
)
def test_an_error_has_the_last_lines_of_the_output_and_a_remedy(output: str, message: str, remedy: str) -> None:
    error = failure(output, name="ours:1", base="base:1", last="one\ntwo")
    assert message in error.message
    assert remedy in error.remedy
    assert "{" not in error.message + error.remedy
    if "does not answer" not in error.message:
        assert error.message.endswith("  | one\n  | two")
        assert "ours:1 could not be built" in error.message
