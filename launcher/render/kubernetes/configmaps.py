"""The ConfigMaps of a run: the addresses of its tasks, the user's code, and the parent of a command. Pure, except that it reads files.

The name of each contains a digest of its content, and none is ever changed: running pods never see other addresses or files. Jobs are
immutable, too, so applying other manifests over a run fails.
"""

import base64
import hashlib
import itertools
import json
import posixpath
import re
from pathlib import Path
from typing import NoReturn

from launcher.errors import LauncherError, UsageError
from launcher.plan import code as code_files
from launcher.plan import role_rules
from launcher.plan.container_paths import CONTAINER_PARENT
from launcher.render import parent_file
from launcher.render.kubernetes.objects import Object, Run, metadata

CLUSTER_KEY = "TF_CLUSTER"

# The maximum size of a ConfigMap's content, and of the annotation in which `kubectl apply` stores an object.
# https://kubernetes.io/docs/concepts/configuration/configmap/#motivation
_MAX_BYTES = 1024 * 1024
_MAX_ANNOTATION_BYTES = 256 * 1024
_MAX_FILES = 2000


def cluster_name(run: Run) -> str:
    """Return the name of the ConfigMap with the addresses of all tasks."""
    return _digest_name(run, "cluster", _addresses(run))


def code_name(run: Run) -> str:
    """Return the name of the ConfigMap with the user's code."""
    return _digest_name(run, "code", json.dumps(_contents(run), sort_keys=True))


def cluster(run: Run) -> Object:
    """Return the ConfigMap with TF_CONFIG's `cluster`, which all pods share."""
    return _config_map(run, cluster_name(run)) | {"data": {CLUSTER_KEY: _addresses(run)}}


def code(run: Run) -> list[Object]:
    """Return the ConfigMap with the files of `code`; none without `code`.

    Raises LauncherError when a file cannot be read, UsageError when the files exceed the size of a ConfigMap.
    """
    if run.spec.code is None:
        return []
    return [_config_map(run, code_name(run)) | {field: files for field, files in _contents(run).items() if files}]


def parent_name(run: Run) -> str:
    """Return the name of the ConfigMap with the parent of a command."""
    return _digest_name(run, "parent", parent_file.text())


def parent(run: Run) -> list[Object]:
    """Return the ConfigMap with the parent of a command; none if the image has it, or no task uses one."""
    if not any(map(role_rules.parent_is_injected, run.plan.tasks)):
        return []
    text = {posixpath.basename(CONTAINER_PARENT): parent_file.text()}
    return [_config_map(run, parent_name(run)) | {"data": text}]


def _digest_name(run: Run, what: str, content: str) -> str:
    return f"{run.name}-{what}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _config_map(run: Run, name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(run, name), "immutable": True}


def _addresses(run: Run) -> str:
    return json.dumps(run.plan.tasks[0].tf_config["cluster"], separators=(",", ":"))


def notice(objects: list[Object]) -> str | None:
    """Return a notice if one of the objects is too large for plain `kubectl apply`, else None."""
    for manifest in objects:
        if len(json.dumps(manifest)) > _MAX_ANNOTATION_BYTES:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            return f"{name} is larger than plain `kubectl apply` takes; use `kubectl apply --server-side`"
    return None


def code_items(run: Run) -> list[dict[str, str]]:
    """Return the key in the code's ConfigMap for each file, as a volume's `items`."""
    if run.spec.code is None:
        return []
    return [{"key": key, "path": path} for path, key in _keys(Path(run.spec.code)).items()]


def _contents(run: Run) -> dict[str, dict[str, str]]:
    """Return the files of `code` as fields of a ConfigMap: text in `data`, other content in `binaryData`."""
    directory = Path(str(run.spec.code))
    contents: dict[str, dict[str, str]] = {"data": {}, "binaryData": {}}
    total = 0
    for path, key in _keys(directory).items():
        content = _read(directory / path)
        total += len(content)
        if total > _MAX_BYTES:
            raise UsageError(
                f"code is {run.spec.code}, more than a ConfigMap holds ({_MAX_BYTES // 1024} KiB)",
                f"build an image with it, `launcher image build --code {run.spec.code}`, name that as `image`, and leave `code` out",
            )
        try:
            contents["data"][key] = content.decode()
        except UnicodeDecodeError:
            contents["binaryData"][key] = base64.b64encode(content).decode()
    return contents


def _files(directory: Path) -> list[Path]:
    files = list(itertools.islice(code_files.files(directory, _refuse_unreadable), _MAX_FILES + 1))
    if len(files) > _MAX_FILES:
        message = f"code is {directory}, with more than {_MAX_FILES} files"
        raise UsageError(message, "name a directory with only the program (links to directories count, too), or build an image with it")
    if not files:
        raise UsageError(f"code is {directory}, with no files in it", "name the directory with your program")
    return files


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        _refuse_unreadable(error)


def _refuse_unreadable(error: OSError) -> NoReturn:
    raise LauncherError(f"{error.filename} cannot be read: {error.strerror}", "check its permissions") from None


def _keys(directory: Path) -> dict[str, str]:
    """Return the key of each file, by its path. Keys only have letters, digits, `-`, `_` and `.`, so `_2f_` stands for `/`, and so on.

    Only if two files would have one key, each `_` that would begin such a code is escaped, too: other keys change the name of the ConfigMap, and so the Jobs.
    """
    paths = [path.relative_to(directory).as_posix() for path in _files(directory)]
    keys = {path: _escaped(r"[^A-Za-z0-9._-]", path) for path in paths}
    if len(set(keys.values())) == len(keys):
        return keys
    return {path: _escaped(r"[^A-Za-z0-9._-]|_(?=[0-9a-f]+[^A-Za-z0-9.-])", path) for path in paths}


def _escaped(pattern: str, path: str) -> str:
    return re.sub(pattern, lambda match: f"_{ord(match[0]):x}_", path)
