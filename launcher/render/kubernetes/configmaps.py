"""The ConfigMaps of a run: where its tasks are, the user's code, and the parent of a command. Pure, but for reading files.

The name of each has a digest of its content, and none is ever changed: what runs never sees other addresses or files, and Jobs, which are
immutable as well, refuse to be changed to others by halves.
"""

import base64
import hashlib
import itertools
import json
import posixpath
import re
from pathlib import Path

from launcher.errors import LauncherError, UsageError
from launcher.plan import code as code_files
from launcher.plan import role_rules
from launcher.plan.container_paths import CONTAINER_PARENT
from launcher.render import parent_file
from launcher.render.kubernetes.objects import Object, Run, metadata

CLUSTER_KEY = "TF_CLUSTER"

# The most that one ConfigMap may hold, and what `kubectl apply` can note of it in an annotation.
# https://kubernetes.io/docs/concepts/configuration/configmap/#motivation
_LARGEST = 1024 * 1024
_LARGEST_ANNOTATION = 256 * 1024
_MAX_FILES = 2000


def cluster_name(run: Run) -> str:
    """Return the name of the ConfigMap with the addresses of all tasks."""
    return _named(run, "cluster", _addresses(run))


def code_name(run: Run) -> str:
    """Return the name of the ConfigMap with the user's code."""
    return _named(run, "code", json.dumps(_contents(run), sort_keys=True))


def cluster(run: Run) -> Object:
    """Return the ConfigMap with TF_CONFIG's `cluster`: the addresses stand there once, for all pods."""
    return _immutable(run, cluster_name(run)) | {"data": {CLUSTER_KEY: _addresses(run)}}


def code(run: Run) -> list[Object]:
    """Return the ConfigMap with the files of `code`; none where there is no code.

    Raises LauncherError when a file cannot be read, UsageError when they are more than a ConfigMap holds.
    """
    if run.spec.code is None:
        return []
    made = _immutable(run, code_name(run))
    made |= {field: files for field, files in _contents(run).items() if files}
    if len(json.dumps(made)) > _LARGEST:
        raise _too_large(run)
    return [made]


def parent_name(run: Run) -> str:
    """Return the name of the ConfigMap with the parent of a command."""
    return _named(run, "parent", parent_file.text())


def parent(run: Run) -> list[Object]:
    """Return the ConfigMap with the parent of a command; none where the image has it, or nothing is to have one."""
    if not any(map(role_rules.parent_is_injected, run.plan.tasks)):
        return []
    text = {posixpath.basename(CONTAINER_PARENT): parent_file.text()}
    return [_immutable(run, parent_name(run)) | {"data": text}]


def _named(run: Run, what: str, content: str) -> str:
    return f"{run.name}-{what}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _immutable(run: Run, name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(run, name), "immutable": True}


def _addresses(run: Run) -> str:
    return json.dumps(run.plan.tasks[0].tf_config["cluster"], separators=(",", ":"))


def notice(objects: list[Object]) -> str | None:
    """Say that plain `kubectl apply` cannot take the objects, where one of them is too large for it."""
    for made in objects:
        if len(json.dumps(made)) > _LARGEST_ANNOTATION:
            name = f"{made['kind']} {made['metadata']['name']}"
            return f"{name} is larger than plain `kubectl apply` takes; use `kubectl apply --server-side`"
    return None


def items(run: Run) -> list[dict[str, str]]:
    """Return which key of the code's ConfigMap is which file, in directories too."""
    if run.spec.code is None:
        return []
    directory = Path(run.spec.code)
    paths = [path.relative_to(directory).as_posix() for path in _files(directory)]
    return [{"key": _key(path), "path": path} for path in paths]


def _contents(run: Run) -> dict[str, dict[str, str]]:
    """Return the files of `code` as a ConfigMap has them: texts in `data`, what is no text in `binaryData`."""
    directory = Path(str(run.spec.code))
    found: dict[str, dict[str, str]] = {"data": {}, "binaryData": {}}
    total = 0
    for path in _files(directory):
        content = _read(path)
        total += len(content)
        if total > _LARGEST:
            raise _too_large(run)
        key = _key(path.relative_to(directory).as_posix())
        try:
            found["data"][key] = content.decode()
        except UnicodeDecodeError:
            found["binaryData"][key] = base64.b64encode(content).decode()
    return found


def _too_large(run: Run) -> UsageError:
    return UsageError(
        f"code is {run.spec.code}, more than a ConfigMap holds ({_LARGEST // 1024} KiB)",
        f"build an image with it, `launcher image build --code {run.spec.code}`, name that as `image`, and leave `code` out",
    )


def _files(directory: Path) -> list[Path]:
    found = list(itertools.islice(code_files.files(directory), _MAX_FILES + 1))
    if len(found) > _MAX_FILES:
        message = f"code is {directory}, with more than {_MAX_FILES} files"
        raise UsageError(message, "name the directory with the program alone, or build an image with it")
    if not found:
        raise UsageError(f"code is {directory}, with no files in it", "name the directory with your program")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LauncherError(f"{path} cannot be read: {error.strerror}", "check its permissions") from None


def _key(path: str) -> str:
    """Return the key of a file: keys have letters, digits, `-`, `_` and `.` alone, so `_` stands before the code of any other."""
    return re.sub(r"[^A-Za-z0-9.-]", lambda match: "_" if match[0] == "_" else f"_{ord(match[0]):x}_", path)
