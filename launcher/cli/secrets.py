"""The values of variables from secrets outside Kubernetes: they come from this environment, or from the spec's `env_file`.

They are put only into this process's environment, which supervisors and Compose inherit: into no file, message or command line.
"""

import os
import re
from pathlib import Path

from launcher.backend.registry import BACKENDS
from launcher.errors import UsageError
from launcher.notify.delivery import WEBHOOK_VARIABLE
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
    """Set the secrets of tasks, extra containers and the webhook that this environment lacks, from `env_file`.

    Returns notices for people: without the webhook's URL, a run starts nevertheless. Raises UsageError if another value is in neither
    place, if two secrets share a name, or if the file cannot be read.
    """
    sources: dict[str, set[str]] = {}
    for task in plan.tasks:
        for name, value in task.secrets.items():
            sources.setdefault(name, set()).add(f"{value.key} of {value.secret}")
    if not BACKENDS[plan.target].stores_locally:
        for name, secret in container_secrets(spec):
            sources.setdefault(name, set()).add(f"{secret.key} of {secret.secret}")
    env_file = spec.env_file
    if several := {name: sorted(values) for name, values in sources.items() if len(values) > 1}:
        named = "; ".join(f"{name} ({', '.join(values)})" for name, values in several.items())
        raise UsageError(f"outside Kubernetes a variable cannot have two secrets: {named}", "give each its own name")
    unset = [name for name in sources if name not in os.environ]
    from_file = read(Path(env_file)) if env_file and unset else {}
    if missing := [name for name in unset if name not in from_file]:
        named = "; ".join(f"{name} ({min(sources[name])})" for name in missing)
        nor = f", nor in {env_file}" if env_file else ""
        remedy = f"set them first: export {' '.join(f'{name}=...' for name in missing)}; or write them to {env_file or 'an `env_file`'}"
        raise UsageError(f"these secrets are not set in this environment, from which tasks take them{nor}: {named}", remedy)
    os.environ.update({name: from_file[name] for name in unset})
    return _supply_webhook(spec)


def _supply_webhook(spec: ClusterSpec) -> tuple[str, ...]:
    if spec.notify is None or spec.notify.webhook is None or WEBHOOK_VARIABLE in os.environ:
        return ()
    from_file = read(Path(spec.env_file)) if spec.env_file else {}
    if WEBHOOK_VARIABLE not in from_file:
        nor = f", nor in {spec.env_file}" if spec.env_file else ""
        return (f"no message is sent to the webhook: its URL, {WEBHOOK_VARIABLE}, is not set in this environment{nor}",)
    os.environ[WEBHOOK_VARIABLE] = from_file[WEBHOOK_VARIABLE]
    return ()


def read(file: Path) -> dict[str, str]:
    """Return the variables of a file, the last of each name, as Compose reads them, but with `$` as a plain dollar. Raises UsageError."""
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")  # not splitlines: a value may contain other line ends
    except (OSError, UnicodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"env_file {file} cannot be read: {cause}", "write it, or set the secrets in this environment and leave `env_file` out"
        ) from None
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if "\0" in line:
            raise UsageError(f"{file}:{number}: the line has a NUL character, which no variable can have", f"remove it; write {_EXPECTED}")
        match = _LINE.match(line)
        value = _value(match[2]) if match else None
        if match is None or value is None:  # the line is not shown: it may be a secret
            wrong = "is not NAME=value" if match is None else "has an opening quote without a closing one"
            raise UsageError(f"{file}:{number}: the line {wrong}", f'write {_EXPECTED}; a value of several lines as "one\\ntwo"')
        variables[match[1]] = value
    return variables


def _value(written: str) -> str | None:
    """Return the value behind `=`, None if its quotes are not closed."""
    if written[:1] not in {"'", '"'}:
        return _COMMENT.sub("", written)
    match = _QUOTED.match(written)
    if match is None or not _AFTER_QUOTES.match(written, match.end()):
        return None
    return match[1] if match[1] is not None else re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[2])
