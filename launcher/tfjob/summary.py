"""The differences between a run and the TFJob's: what starts again, what exit codes mean, what ends it, what TF_CONFIG contains."""

from dataclasses import dataclass

from launcher.spec.models import Limits
from launcher.spec.problems import all_of
from launcher.tfjob.draft import Draft, RoleDraft

_DEFAULT = Limits()
# A role's `restart` -> when its tasks start again.
_RESTARTS = {
    "on_failure": "after a failure, at most {count} times",
    "always": "whenever it ends, after failures at most {count} times",
    "exit_code": "after signals (128 and above), at most {count} times",
    "never": "never",
}


@dataclass(frozen=True)
class Difference:
    """One thing that is other than it was."""

    about: str
    message: str


def differences(draft: Draft) -> list[Difference]:
    """Return the differences that somebody who ran the TFJob should know."""
    found = {
        "restarts": _restarts(draft),
        "exit codes": _exit_codes(draft),
        "end": _end(draft),
        "TF_CONFIG": _tf_config(draft),
        "start": "" if draft.is_alone else _start(draft),
        "image": _image(draft),
        "other backends": "the section `kubernetes` holds there alone: on this machine and in Compose tasks lack its overrides, and what `launcher validate` names.",
        "rights": "no new privileges, seccomp RuntimeDefault, and no token of the namespace's default service account.",
    }
    return [Difference(about, message) for about, message in found.items() if message]


def _restarts(draft: Draft) -> str:
    limits = draft.spec.get("limits", {})
    count = limits.get("max_restarts", _DEFAULT.max_restarts)
    by_way: dict[str, list[str]] = {}
    for role in draft.roles:
        by_way.setdefault(_restart(role), []).append(role.name)
    ways = [f"{all_of(names)} {_RESTARTS[way].format(count=count)}" for way, names in by_way.items()]
    limit = ""
    if set(by_way) != {"never"}:
        limit = " (`limits.max_restarts`)" if "max_restarts" in limits else " (`limits.max_restarts`; TFJob had no limit of its own)"
    return f"a task starts again: {'; '.join(ways)}{limit}. A pod that was evicted, or lost with its node, is always replaced."


def _exit_codes(draft: Draft) -> str:
    final = " Of roles with exit_code 1 to 127 end the run." if _any(draft, "exit_code") else ""
    return f"0 is success, 2 is final, 75 and 143 ask for another start; all others are failures.{final}"


def _end(draft: Draft) -> str:
    first = "the chief" if draft.leading == "chief" else "worker-0"
    workers = " and of all workers" if draft.success == "all_workers" else ""
    others = [
        words
        for name, words in (
            ("ps", "a ps is ended at once"),
            (
                "worker",
                f"workers have `limits.worker_grace` ({_DEFAULT.worker_grace})"
                if _has(draft, "ps")
                else "workers have `limits.grace_period`",
            ),
            ("evaluator", f"the evaluator has `limits.evaluator_grace` ({_DEFAULT.evaluator_grace})"),
        )
        if _has(draft, name) and not (name == "worker" and workers)
    ]
    then = f" Then {', '.join(others)}." if others and not draft.is_alone else ""
    watched = ""
    if any(role.is_entrypoint for role in draft.roles if role.name == draft.leading) and not draft.is_alone:
        watched = " Its entrypoint cannot end the others: `launcher up` or `launcher wait` has to run to do so."
    jobs_stay = " Its Jobs stay until `launcher down`." if "ttl" not in draft.spec.get("kubernetes", {}) else ""
    return f"the run succeeds with exit 0 of {first}{workers}.{then}{watched}{jobs_stay}"


def _tf_config(draft: Draft) -> str:
    if draft.is_alone:
        return "none on Kubernetes, as before for a job of one replica."
    evaluator = " The evaluator stands outside of `cluster`, as in older versions of TFJob." if _has(draft, "evaluator") else ""
    master = " The chief is called `master`, as before: `tf_config: {master: true}`." if "tf_config" in draft.spec else ""
    return f"the same roles and indices in the same order, at port 2222; hosts are called otherwise, and `environment` is not set.{evaluator}{master}"


def _start(draft: Draft) -> str:
    timeout = draft.spec.get("limits", {}).get("start_timeout", _DEFAULT.start_timeout)
    return f"tasks wait {timeout} for each other (`limits.start_timeout`), then the run fails; TFJob's waited as long as it took."


def _image(draft: Draft) -> str:
    if all(role.is_entrypoint for role in draft.roles):
        return "its entrypoint runs by itself; write its words as `command` to have it run under the trainer's parent (docs/programs.md)."
    return "the programs run under a small parent, which needs Python 3.8 or later there; for an image without it write `supervise: false`."


def _has(draft: Draft, name: str) -> bool:
    return any(role.name == name for role in draft.roles)


def _any(draft: Draft, restart: str) -> bool:
    return any(_restart(role) == restart for role in draft.roles)


def _restart(role: RoleDraft) -> str:
    return str(role.fields.get("restart", "on_failure"))
