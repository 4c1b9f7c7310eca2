"""Checks of names: those that DNS, Kubernetes or Docker accept, and those that the launcher reserves."""

import ipaddress
import posixpath
import re

from launcher.spec.problems import FieldError, shown

# RFC 1035 section 2.3.1 in lower case. Kubernetes requires it of Services, and the run's name is the name of one.
LABEL_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_LABEL = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?\Z")
_LABEL_EXPECTED = "lower-case letters, digits and dashes, a letter first and no dash last"
MAX_LABEL_LENGTH = 63

# The longest name derived from a run's name must be a label, too.
_LONGEST_SUFFIX = "-worker-9999"
MAX_NAME_LENGTH = MAX_LABEL_LENGTH - len(_LONGEST_SUFFIX)

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*\Z")
_SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_LABEL_VALUE = re.compile(r"(?=.{0,63}\Z)([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?\Z")
# A simplified form of the grammar in https://pkg.go.dev/github.com/distribution/reference.
_IMAGE = re.compile(
    r"(?=.{1,512}\Z)([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?\Z"
)

_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}\Z")
# Variables that are used before a task starts: their values cannot come from a Secret.
_NO_SECRETS = frozenset({"PATH", "PYTHONPATH", "HOME"})
# Variables that the launcher itself sets for each task.
_RESERVED_ENV = frozenset({"TF_CONFIG", "TF_CLUSTER", "JOB_COMPLETION_INDEX", "RUN_DIR", "RUN_NAME"})
_RESERVED_PREFIX = "TRAINER_"
# Prefixes of the labels and annotations that the launcher sets.
_RESERVED_LABEL_PREFIXES = ("app.kubernetes.io/", "tf-launcher/")
TMP = "/tmp"  # noqa: S108 - in a container; if it is hardened, the only writable directory of its root file system
RUN_VOLUME = "run"  # the run's own volume, in `mounts` and in Compose
# Every pod has volumes of these names.
_RESERVED_VOLUMES = frozenset({RUN_VOLUME, "tmp", "shm", "code", "tf-launcher"})
_RESERVED_CONTAINERS = frozenset({"trainer"})
_RESERVED_PATHS = ("/runs", TMP, "/dev", "/proc", "/sys", "/code", "/tf-launcher")


def is_reserved_variable(name: str) -> bool:
    """Return whether the launcher itself sets this environment variable for each task."""
    return name in _RESERVED_ENV or name.startswith(_RESERVED_PREFIX)


def is_reserved_label(key: str) -> bool:
    """Return whether the launcher itself sets labels or annotations with this key."""
    return key.startswith(_RESERVED_LABEL_PREFIXES)


def is_reserved_volume(name: str) -> bool:
    """Return whether every pod already has a volume of this name."""
    return name in _RESERVED_VOLUMES


def check_run_name(name: str) -> str:
    """Return the run's name, or raise FieldError: a DNS-1035 label that leaves room for a task's role and index."""
    label = as_label(name)
    if not _LABEL.match(name):
        raise FieldError(f"{shown(name)} is not a DNS label", _LABEL_EXPECTED, f"write {label[:MAX_NAME_LENGTH].rstrip('-')}")
    if len(name) > MAX_NAME_LENGTH:
        message = f"{shown(name)} has {len(name)} characters, too many for the names made from it, such as <name>{_LONGEST_SUFFIX}"
        remedy = f"write {name[:MAX_NAME_LENGTH].rstrip('-')}, the longest that fits"
        raise FieldError(message, f"at most {MAX_NAME_LENGTH} characters, so that those have at most {MAX_LABEL_LENGTH}", remedy)
    return name


def check_namespace(name: str) -> str:
    """Return a namespace's name, or raise FieldError: a DNS-1123 label."""
    _check_label(name, "a namespace")
    return name


def check_object_name(name: str) -> str:
    """Return the name of a Kubernetes object, or raise FieldError: a DNS-1123 subdomain."""
    if not _SUBDOMAIN.match(name):
        expected = "lower-case letters, digits, dashes and dots"
        raise FieldError(f"{shown(name)} is not the name of a Kubernetes object", expected, f"write {as_label(name)}")
    return name


def check_variable_name(name: str) -> None:
    """Raise FieldError when this cannot be the name of an environment variable."""
    if not _ENV.match(name):
        meant = re.sub(r"[^A-Za-z0-9_]", "_", name)
        remedy = f"write {meant if _ENV.match(meant) else f'_{meant}'}"
        message = f"{shown(name)} cannot be the name of an environment variable"
        raise FieldError(message, "letters, digits and underscores, no digit first", remedy)


def check_task_variable(name: str) -> None:
    """Raise FieldError when this cannot be an environment variable of a task."""
    check_variable_name(name)
    if is_reserved_variable(name):
        raise FieldError(f"`{name}` is set by the launcher for each task", "another name", "leave it out, or choose another name")


def can_be_secret(variable: str) -> bool:
    """Return whether the value of a variable can come from a Secret."""
    return variable not in _NO_SECRETS and not variable.startswith("COMPOSE_")


def check_can_be_secret(variable: str) -> None:
    """Raise FieldError when the value of a variable cannot come from a Secret, because the launcher, Docker or Compose uses it."""
    if not can_be_secret(variable):
        raise FieldError(f"`{variable}` cannot come from a secret: it is used before a task starts", "a string", "write the value")


def check_secret_key(key: str) -> str:
    """Return the key of a Secret's value, or raise FieldError."""
    if not _SECRET_KEY.match(key) or key in {".", ".."}:
        raise FieldError(
            f"{shown(key)} is not the key of a Secret's value", "letters, digits, dashes, underscores and dots", "write its key"
        )
    return key


def check_label_key(key: str) -> str:
    """Return the key of a Kubernetes label, or raise FieldError."""
    prefix, slash, name = key.rpartition("/")
    if not name or not _LABEL_VALUE.match(name) or (slash and not _SUBDOMAIN.match(prefix)):
        expected = "at most 63 letters, digits, `-`, `_` and `.`, after a domain and `/` if you like"
        raise FieldError(f"{shown(key)} cannot be a label's key", expected, "write a key such as `pool` or `example.com/pool`")
    return key


def check_user_label_key(key: str) -> None:
    """Raise FieldError when a user cannot set a label or annotation with this key."""
    check_label_key(key)
    if is_reserved_label(key):
        raise FieldError(f"`{key}` is set by the launcher", "another key", "leave it out, or choose another key")


def check_label_value(value: str) -> None:
    """Raise FieldError when this cannot be the value of a Kubernetes label."""
    if not _LABEL_VALUE.match(value):
        expected = "at most 63 letters, digits, `-`, `_` and `.`"
        raise FieldError(f"{shown(value)} cannot be a label's value", expected, "write a value such as `fast-disks`")


def check_resource(name: str) -> str:
    """Return the resource name of a node's devices, or raise FieldError: a domain, a slash and a name."""
    prefix, _, rest = name.partition("/")
    if not rest or not _SUBDOMAIN.match(prefix) or not _LABEL_VALUE.match(rest):
        raise FieldError(
            f"{shown(name)} is not the name of a node's resource",
            "such as `nvidia.com/gpu` or `amd.com/gpu`",
            "write nvidia.com/gpu, for example",
        )
    return name


def _check_label(name: str, of: str) -> None:
    if len(name) > MAX_LABEL_LENGTH or "." in name or not _SUBDOMAIN.match(name):
        expected = f"at most {MAX_LABEL_LENGTH} lower-case letters, digits and dashes"
        raise FieldError(f"{shown(name)} is not the name of {of}", expected, f"write {as_label(name)}")


def check_volume_name(name: str) -> str:
    """Return a volume's name, or raise FieldError: a DNS-1123 label that is not one of the run's own volumes."""
    _check_label(name, "a volume")
    if is_reserved_volume(name):
        raise FieldError(f"{shown(name)} is one of the run's own volumes", "another name", f"write my-{name}, for example")
    return name


def check_mount_path(path: str) -> str:
    """Return the mount path of a volume, or raise FieldError: an absolute path outside the reserved ones."""
    normalized = normalized_path(path)
    if not path.startswith("/") or ":" in path or normalized.strip("/") == "":
        relative = normalized.strip("/").replace(":", "-")
        raise FieldError(f"{shown(path)} is not a mount path", "an absolute path, such as /data", f"write /{relative or 'data'}")
    if any(normalized == own or normalized.startswith(f"{own}/") for own in _RESERVED_PATHS):
        raise FieldError(
            f"{shown(path)} is reserved for the run's own volumes",
            f"a path outside {', '.join(_RESERVED_PATHS)}",
            "write /data, for example",
        )
    return path


def normalized_path(path: str) -> str:
    """Return an absolute path without `.`, `..` and repeated slashes."""
    return f"/{posixpath.normpath(path).strip('/')}"


def check_container_path(path: str) -> str:
    """Return a path in a container, or raise FieldError."""
    if not path.startswith("/") or ":" in path:
        raise FieldError(f"{shown(path)} is not a path in a container", "an absolute path without colons", "write a path such as /data")
    return path


def check_sub_path(path: str) -> str:
    """Return the path of a directory in a volume, or raise FieldError: a relative path without `..`, as Kubernetes requires."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        cleaned = "/".join(part for part in parts if part not in {"", ".", ".."})
        remedy = f"write {cleaned}" if cleaned else "leave it out for the whole volume, or name a directory in it"
        raise FieldError(f"{shown(path)} is not a directory of a volume", "a relative path without `..`", remedy)
    return path


def check_container_name(name: str) -> str:
    """Return the name of an init container or sidecar, or raise FieldError: a DNS-1123 label that is not reserved for the task's container."""
    _check_label(name, "a container")
    if name in _RESERVED_CONTAINERS:
        raise FieldError(f"{shown(name)} is the name of the task's own container", "another name", f"write a name such as my-{name}")
    return name


def check_host(host: str) -> str:
    """Return an address to listen on, or raise FieldError: an IP address or a host's name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if _HOST.match(host) and not re.fullmatch(r"[0-9.]+", host):
            return host
    else:
        return host
    message = f"{shown(host)} is not an address to listen on"
    raise FieldError(message, "an IP address or a host's name", "write 127.0.0.1, or 0.0.0.0 to listen on every interface")


def check_image(image: str) -> str:
    """Return a container image's reference, or raise FieldError."""
    if not _IMAGE.match(image):
        raise FieldError(
            f"{shown(image)} is not an image", "such as `registry.example.com/team/trainer:1.0`", "write the image as you would pull it"
        )
    return image


def as_label(text: str) -> str:
    """Return a DNS label derived from a text, of any length; `run` for a text without letters and digits."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not label:
        return "run"
    return label if label[0].isalpha() else f"run-{label}"
