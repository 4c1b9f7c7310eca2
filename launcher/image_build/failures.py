"""Turns the output of a failed build, of the engine and of pip, into an error with a cause and a remedy."""

import re

from launcher.docker_cli import DockerError, engine_error, last_line

_PROXY = "behind a proxy or with an index of your own, see docs/images.md: --build-arg HTTPS_PROXY=..., --pip-config FILE, --ca-file FILE"
_BUILDX = "install the plugin (Debian, Ubuntu: docker-buildx; Docker Desktop has it); `docker buildx version` must answer"

# Pattern of the output -> cause, remedy. The first match counts; {base} is the base image.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"buildx component is missing|unknown flag: --(?:secret|progress)|BuildKit is (?:not supported|disabled)|the --mount option requires BuildKit",
        "this Docker has no BuildKit",
        _BUILDX,
    ),
    (r"no space left on device", "the engine's disk is full", "free some space there: docker system df, docker system prune"),
    (
        r"exec format error",
        "the base image {base} is for another processor architecture",
        "name another with --base-image, or unset DOCKER_DEFAULT_PLATFORM",
    ),
    (
        r"> \[internal\] load metadata|/v2/\S+/manifests/",  # the engine does not always write both
        "the engine does not have the base image {base} and cannot fetch it",
        (
            "if it can reach a registry: docker pull {base}; else choose one of its images (docker images) with --base-image."
            " A proxy for the engine itself is set up in the engine: docs/images.md"
        ),
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "the package index serves files that differ from the lock file's",
        "use an index that serves the published files unchanged: " + _PROXY,
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        "the package index's certificate is not trusted",
        "give your company's certificates: --ca-file FILE",
    ),
    (
        r"\b40[137] (?:Client Error|Unauthorized|Forbidden|Proxy Authentication)|Error 40[13]\b",
        "the package index or the proxy asks for a login",
        "give pip a configuration with name and password, as a secret: --pip-config FILE",
    ),
    (
        (
            r"name resolution|Name or service not known|ConnectTimeoutError|ReadTimeoutError|NewConnectionError|ProxyError|Connection refused"
            r"|Network is unreachable|Max retries exceeded"
        ),
        "the package index cannot be reached from inside the build",
        _PROXY,
    ),
    (
        r"No matching distribution found|Could not find a version that satisfies",
        "the package index lacks a package of the lock file for this processor and the base image's Python",
        "TensorFlow 2.21 needs Python 3.11 to 3.13 in the base image; " + _PROXY,
    ),
    (
        r"python: not found|No module named (?:pip|venv)|no such option: --python|getent: not found",
        "the base image {base} lacks a tool that the build needs",
        "it needs sh, useradd, and python 3.11 to 3.13 with venv and pip 22.3 or newer, as the official python images have",
    ),
)


def failure(output: str, *, name: str, base: str, last: str) -> DockerError:
    """Return the error for a build of the image `name` on `base` that failed; `last` holds the lines to show."""
    if error := engine_error(output):
        return error
    failed = f"the image {name} could not be built"
    for pattern, message, remedy in _CAUSES:
        if re.search(pattern, output):
            return DockerError(f"{failed}: {message.format(base=base)}\n{_indented(last)}", remedy.format(base=base), output)
    return DockerError(
        f"{failed}: {last_line(output)}\n{_indented(last)}", "the lines above are the build's last; --verbose shows all", output
    )


def _indented(lines: str) -> str:
    return "\n".join(f"  | {line}" for line in lines.splitlines())
