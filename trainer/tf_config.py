"""Reads TF_CONFIG strictly: the role and index of this task, and the addresses of all.

TF_CONFIG is TensorFlow's own: {"cluster": {role: [address]}, "task": {"type", "index"}}. TensorFlow accepts much that
cannot work, and hangs later; this module finds every problem before anything is started.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

ROLES = ("chief", "worker", "ps", "evaluator")
CLUSTER_ROLES = ("chief", "worker", "ps")

# Other common names of roles, which difflib would not find.
_ALIASES = {
    "master": "chief",
    "coordinator": "chief",
    "leader": "chief",
    "parameter_server": "ps",
    "parameterserver": "ps",
    "server": "ps",
    "eval": "evaluator",
    "replica": "worker",
}
_TOP_KEYS = ("cluster", "task")
_TOLERATED_KEYS = ("environment", "rpc_layer")  # written by other launchers, read by TensorFlow, of no use here
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?\]")


class ConfigurationError(ValueError):
    """TF_CONFIG or the settings cannot be used; `problems` has one sentence for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class TaskConfig:
    """One task and the cluster it is in. An empty cluster is a task that works alone."""

    cluster: dict[str, tuple[str, ...]] = field(default_factory=dict)
    role: str = "chief"
    index: int = 0

    @property
    def name(self) -> str:
        """The task's name: `chief`, `evaluator`, `worker-0`, `ps-1`."""
        return task_name(self.role, self.index)

    @property
    def address(self) -> str | None:
        """The task's own host:port; None for the evaluator and for a task that works alone."""
        addresses = self.cluster.get(self.role, ())
        return addresses[self.index] if self.index < len(addresses) else None

    def tasks(self) -> dict[str, str]:
        """Every task in the cluster: name -> address, chief first, then workers and ps by index."""
        return {task_name(role, index): address for role in CLUSTER_ROLES for index, address in enumerate(self.cluster.get(role, ()))}

    def peers(self) -> dict[str, str]:
        """Every other task in the cluster: name -> address."""
        return {name: address for name, address in self.tasks().items() if name != self.name}

    @property
    def chief_name(self) -> str:
        """Name of the leader: the chief, or worker-0 where there is none."""
        return "worker-0" if "chief" not in self.cluster and self.cluster.get("worker") else "chief"

    @property
    def chief_address(self) -> str | None:
        """Address of the leader; None where there is no cluster."""
        return self.tasks().get(self.chief_name)

    @property
    def is_chief(self) -> bool:
        """Whether this task leads: saves checkpoints, evaluates, writes summaries."""
        return self.name == self.chief_name


def task_name(role: str, index: int) -> str:
    """Return the name of a task: chief and evaluator have no index, as a run has one of each."""
    return role if role in {"chief", "evaluator"} else f"{role}-{index}"


def parse(text: str | None, *, has_master: bool = False) -> TaskConfig:
    """Return the task that TF_CONFIG describes; None or an empty text is a chief that works alone.

    `has_master` says that the chief may be called master in it, as in TensorFlow 1. Raises ConfigurationError with every problem at once.
    """
    if text is None or not text.strip():
        return TaskConfig()
    document = _with_chief(_load(text)) if has_master else _load(text)
    problems: list[str] = []
    _check_keys(document, problems)
    cluster: dict[str, tuple[str, ...]] | None = None
    if "cluster" in document:
        cluster = _cluster(document["cluster"], problems)
    if "task" in document:
        role, index = _task(document["task"], problems)
        _check_member(role, index, document.get("cluster"), problems)
    if problems or cluster is None:
        raise ConfigurationError(problems)
    return TaskConfig(cluster=cluster, role=role, index=index)


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`, also `[IPv6]:port`, in host and port. Raises ValueError with the problem as message."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port:
        raise ValueError("is not host:port; expected for example worker-0:2222")
    if not (_HOST.fullmatch(host) or _IPV6.fullmatch(host)) or len(host) > 253:
        hint = "; an IPv6 address stands in brackets: [::1]:2222" if host.count(":") > 1 else ""
        raise ValueError(f"has {host!r} for a host; expected a host name or an IP address before the colon, no scheme and no path{hint}")
    if not (port.isascii() and port.isdigit()) or not 1 <= int(port[:9]) <= 65535:
        raise ValueError(f"has {port!r} for a port; expected a number from 1 to 65535")
    return host.strip("[]"), int(port)


def _load(text: str) -> dict[str, Any]:
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return dict(items)

    try:
        document = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        excerpt = text[max(0, error.pos - 20) : error.pos + 20]
        remedy = (
            "a $(NAME) was not replaced: declare that variable before TF_CONFIG in the pod"
            if re.search(r"\$\(\w+\)", text)
            else "correct it there; names and texts stand in double quotes"
        )
        message = f"TF_CONFIG is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}, near {excerpt!r}; {remedy}"
        raise ConfigurationError([message]) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets thousands deep
        raise ConfigurationError([f"TF_CONFIG is not usable JSON: {error}; write it again"]) from None
    if not isinstance(document, dict):
        raise ConfigurationError([f"TF_CONFIG is {_kind(document)}; expected an object with the keys cluster and task"])
    if repeated:
        raise ConfigurationError([f"TF_CONFIG has the key {key!r} more than once in one object; merge them" for key in repeated])
    return document


def _with_chief(document: dict[str, Any]) -> dict[str, Any]:
    """Return TF_CONFIG with the master of its cluster called chief, unless that has both or none."""
    cluster, task = document.get("cluster"), document.get("task")
    if not isinstance(cluster, dict) or "master" not in cluster or "chief" in cluster:
        return document
    renamed = {**document, "cluster": {"chief" if role == "master" else role: listed for role, listed in cluster.items()}}
    if isinstance(task, dict) and task.get("type") == "master":
        renamed["task"] = {**task, "type": "chief"}
    return renamed


def _check_keys(document: dict[str, Any], problems: list[str]) -> None:
    problems.extend(
        f"TF_CONFIG.{key} is missing; expected {what}"
        for key, what in (
            ("cluster", '{"chief": ["host:port"], "worker": [...]}'),
            ("task", '{"type": "worker", "index": 0}, what this process is'),
        )
        if key not in document
    )
    _unknown_keys("TF_CONFIG", document, (*_TOP_KEYS, *_TOLERATED_KEYS), problems)


def _unknown_keys(path: str, value: dict[str, Any], known: tuple[str, ...], problems: list[str]) -> None:
    for key in value:
        if key not in known:
            similar = difflib.get_close_matches(key.lower(), known, n=1)
            remedy = f"did you mean {similar[0]!r}?" if similar else "remove it"
            problems.append(f"{path} has an unknown key {key!r}; expected {', '.join(known)}; {remedy}")


def _cluster(value: Any, problems: list[str]) -> dict[str, tuple[str, ...]]:
    path = "TF_CONFIG.cluster"
    if not isinstance(value, dict):
        problems.append(f'{path} is {_kind(value)}; expected an object {{"worker": ["host:port", ...]}}')
        return {}
    cluster: dict[str, tuple[str, ...]] = {}
    for role, listed in value.items():
        if role == "evaluator":
            problems.append(
                f"{path}.evaluator must not be there: the evaluator is no member of the cluster; remove it, and leave it in task only"
            )
            continue
        if role not in CLUSTER_ROLES:
            problems.append(f"{path} has an unknown task type {role!r}; expected {', '.join(CLUSTER_ROLES)}; {_role_remedy(role)}")
            continue
        cluster[role] = _addresses(f"{path}.{role}", listed, problems)
    _check_one_chief(value, problems)
    _check_distinct_addresses(cluster, problems)
    return cluster


def _addresses(path: str, listed: Any, problems: list[str]) -> tuple[str, ...]:
    """Return the addresses of one role. One that is not a string is reported, and becomes an empty string, so that indexes hold."""
    if isinstance(listed, dict):  # TensorFlow takes {index: address} too
        expected = [str(index) for index in range(len(listed))]
        if sorted(listed) != sorted(expected):
            problems.append(f"{path} has the indexes {', '.join(listed)}; expected {', '.join(expected)} without gaps; give every address")
            return ()
        listed = [listed[index] for index in expected]
    if not isinstance(listed, list):
        problems.append(f'{path} is {_kind(listed)}; expected a list of addresses ["host:port", ...]')
        return ()
    if not listed:
        problems.append(f"{path} is empty; expected at least one address; give one or remove {path.rpartition('.')[2]!r} from the cluster")
    checked = []
    for index, address in enumerate(listed):
        if not isinstance(address, str):
            problems.append(f'{path}[{index}] is {_kind(address)}; expected a text "host:port"')
            checked.append("")
            continue
        try:
            split_address(address)
        except ValueError as error:
            problems.append(f"{path}[{index}]: {address!r} {error}")
        checked.append(address)
    return tuple(checked)


def _check_one_chief(cluster: dict[str, Any], problems: list[str]) -> None:
    """Report clusters that no strategy can use."""
    chiefs = cluster.get("chief")
    if isinstance(chiefs, (list, dict)) and len(chiefs) > 1:
        problems.append(
            f"TF_CONFIG.cluster.chief has {len(chiefs)} addresses; expected one: a cluster has one chief; make the others workers"
        )


def _check_distinct_addresses(cluster: dict[str, tuple[str, ...]], problems: list[str]) -> None:
    owners: dict[str, list[str]] = {}
    for role, addresses in cluster.items():
        for index, address in enumerate(addresses):
            if address:
                owners.setdefault(address.lower(), []).append(task_name(role, index))
    for address, names in owners.items():
        if len(names) > 1:
            problems.append(
                f"TF_CONFIG.cluster: {' and '.join(names)} are on one address, {address}; expected one address a task; change all but one"
            )


def _task(value: Any, problems: list[str]) -> tuple[str, int]:
    """Return the task's role and index. An invalid one is reported, and returned as an empty role or -1."""
    path = "TF_CONFIG.task"
    if not isinstance(value, dict):
        problems.append(f'{path} is {_kind(value)}; expected an object {{"type": "worker", "index": 0}}')
        return "", -1
    _unknown_keys(path, value, ("type", "index"), problems)
    role, index = value.get("type"), value.get("index")
    if "type" not in value:
        problems.append(f"{path}.type is missing; expected one of {', '.join(ROLES)}")
    elif not isinstance(role, str):
        problems.append(f"{path}.type is {_kind(role)}; expected one of {', '.join(ROLES)}, in quotes")
    elif role not in ROLES:
        problems.append(f"{path}.type: unknown task type {role!r}; expected one of {', '.join(ROLES)}; {_role_remedy(role)}")
    if "index" not in value:
        problems.append(f"{path}.index is missing; expected the task's place in its list of addresses, from 0")
    elif isinstance(index, bool) or not isinstance(index, int):
        remedy = "; remove the quotes" if isinstance(index, str) and index.isdecimal() else ""
        problems.append(f"{path}.index is {_kind(index)}; expected an integer, from 0{remedy}")
    elif index < 0:
        problems.append(f"{path}.index is {index}; expected 0 or more")
    return (
        role if isinstance(role, str) and role in ROLES else "",
        index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else -1,
    )


def _check_member(role: str, index: int, cluster: Any, problems: list[str]) -> None:
    """Report a task that is not in its cluster. No problem is reported twice."""
    if role == "evaluator":
        if index > 0:
            problems.append(f"TF_CONFIG.task.index is {index}; expected 0: a run has one evaluator")
        return
    if not role or index < 0 or not isinstance(cluster, dict):
        return
    listed = cluster.get(role)
    if role not in cluster:
        if cluster or role != "chief":  # {} and chief: a task that works alone
            roles = ", ".join(cluster) or "nothing"
            problems.append(
                f"TF_CONFIG.task.type is {role!r}, which TF_CONFIG.cluster does not have; expected one of: {roles}; add its address there"
            )
        elif index > 0:
            problems.append(f"TF_CONFIG.task.index is {index}; expected 0: the cluster is empty, so this is its only task")
    elif isinstance(listed, (list, dict)) and index >= len(listed) > 0:
        expected = "0" if len(listed) == 1 else f"0 to {len(listed) - 1}"
        problems.append(
            f"TF_CONFIG.task.index is {index}, but the cluster has {len(listed)} {role}; expected {expected}; "
            f"correct the index or add the address to TF_CONFIG.cluster.{role}"
        )


def _role_remedy(role: str) -> str:
    alias = _ALIASES.get(role.lower().replace("-", "_"))
    similar = [alias] if alias else difflib.get_close_matches(role.lower(), ROLES, n=1)
    if alias == "chief" and role.lower() == "master":
        return "TensorFlow 1's master is the chief now: write 'chief'"
    return f"did you mean {similar[0]!r}?" if similar else "use one of those"


def _kind(value: Any) -> str:
    shown = json.dumps(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    name = names[type(value)]
    return name if value is None else f"{name}, {shown}"
