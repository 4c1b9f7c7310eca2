"""The values of variables that come from secrets, where no cluster has them: of this environment, or of the spec's `env_file`.

They get into this process's environment, which supervisors and Compose inherit, and nowhere else: no file, no message, no command line.
"""

import os
import re
from pathlib import Path

from launcher.backend.registry import BACKENDS
from launcher.errors import UsageError
from launcher.notify.outbox import VARIABLE
from launcher.plan.models import Plan
from launcher.spec.models import ClusterSpec
from launcher.spec.role_programs import container_secrets

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=[ \t]*(.*?)\s*\Z")
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""")
_AFTER_QUOTES = re.compile(r"\s*(#.*)?\Z")
_COMMENT = re.compile(r"\s+#.*\Z")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_EXPECTED = "lines of NAME=value, comments after #"


def supply(plan: Plan, spec: ClusterSpec) -> tuple[str, ...]:
    """Put the secrets of tasks, of containers beside them and of the webhook into this environment; those that are not set come from `env_file`.

    Returns notices for people: a webhook whose URL is missing keeps no run from starting. Raises UsageError if another value is in neither
    place, one name is of two secrets, or the file cannot be read.
    """
    meant: dict[str, set[str]] = {}
    for task in plan.tasks:
        for name, value in task.secrets.items():
            meant.setdefault(name, set()).add(f"{value.key} of {value.secret}")
    if not BACKENDS[plan.target].stores_locally:
        for name, secret in container_secrets(spec):
            meant.setdefault(name, set()).add(f"{secret.key} of {secret.secret}")
    env_file = spec.env_file
    if several := {name: sorted(values) for name, values in meant.items() if len(values) > 1}:
        named = "; ".join(f"{name} ({', '.join(values)})" for name, values in several.items())
        raise UsageError(f"outside Kubernetes one variable cannot be of two secrets: {named}", "give each its own name")
    unset = [name for name in meant if name not in os.environ]
    given = read(Path(env_file)) if env_file and unset else {}
    if missing := [name for name in unset if name not in given]:
        named = "; ".join(f"{name} ({min(meant[name])})" for name in missing)
        nor = f", nor in {env_file}" if env_file else ""
        remedy = f"set them first: export {' '.join(f'{name}=...' for name in missing)}; or write them to {env_file or 'an `env_file`'}"
        raise UsageError(f"these secrets are not set in this environment, where tasks take them from{nor}: {named}", remedy)
    os.environ.update({name: given[name] for name in unset})
    return _supply_webhook(spec)


def _supply_webhook(spec: ClusterSpec) -> tuple[str, ...]:
    if spec.notify is None or spec.notify.webhook is None or VARIABLE in os.environ:
        return ()
    given = read(Path(spec.env_file)) if spec.env_file else {}
    if VARIABLE not in given:
        nor = f", nor in {spec.env_file}" if spec.env_file else ""
        return (f"no webhook is told: {VARIABLE}, which has its URL, is not set in this environment{nor}",)
    os.environ[VARIABLE] = given[VARIABLE]
    return ()


def read(file: Path) -> dict[str, str]:
    """Return the variables of a file, the last of each name, as Compose reads them but for `$`, which is a dollar here. Raises UsageError."""
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")  # other characters that end lines may be in a value
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"env_file {file} cannot be read: {why}", "write it, or set the secrets in this environment and leave `env_file` out"
        ) from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if "\0" in line:
            raise UsageError(f"{file}:{number}: the line has a NUL character, which no variable can have", f"remove it; write {_EXPECTED}")
        match = _LINE.match(line)
        value = _value(match[2]) if match else None
        if match is None or value is None:  # the line may be a secret, and is not shown
            wrong = "is not NAME=value" if match is None else "has a quote that it does not end with"
            raise UsageError(f"{file}:{number}: the line {wrong}", f'write {_EXPECTED}; a value of several lines as "one\\ntwo"')
        found[match[1]] = value
    return found


def _value(written: str) -> str | None:
    """Return the value that stands behind `=`, None where its quotes are not closed."""
    if written[:1] not in {"'", '"'}:
        return _COMMENT.sub("", written)
    match = _QUOTED.match(written)
    if match is None or not _AFTER_QUOTES.match(written, match.end()):
        return None
    return match[1] if match[1] is not None else re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[2])
