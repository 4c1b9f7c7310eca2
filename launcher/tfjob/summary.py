"""The differences between a run and its TFJob, for people."""

from dataclasses import dataclass

from launcher.plan.addresses import PORT
from launcher.spec.models import Limits
from launcher.spec.problems import all_of
from launcher.tfjob.builder import RoleBuilder, SpecBuilder

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
    """One difference."""

    about: str
    message: str


def differences(builder: SpecBuilder) -> list[Difference]:
    """Return the differences that users of the TFJob should know."""
    messages = {
        "restarts": _restarts(builder),
        "exit codes": _exit_codes(builder),
        "end": _end(builder),
        "TF_CONFIG": _tf_config(builder),
        "start": "" if builder.is_single_task else _start(builder),
        "image": _image(builder),
        "other backends": "the section `kubernetes` is for Kubernetes only: on this machine and in Compose tasks lack its overrides, and the settings that `launcher validate` names.",
        "rights": "no new privileges, seccomp RuntimeDefault, and no token of the namespace's default service account.",
    }
    return [Difference(about, message) for about, message in messages.items() if message]


def _restarts(builder: SpecBuilder) -> str:
    limits = builder.spec.get("limits", {})
    count = limits.get("max_restarts", _DEFAULT.max_restarts)
    roles_by_restart: dict[str, list[str]] = {}
    for role in builder.roles:
        roles_by_restart.setdefault(_restart(role), []).append(role.name)
    restart_texts = [f"{all_of(names)} {_RESTARTS[restart].format(count=count)}" for restart, names in roles_by_restart.items()]
    limit = ""
    if set(roles_by_restart) != {"never"}:
        limit = " (`limits.max_restarts`)" if "max_restarts" in limits else " (`limits.max_restarts`; TFJob had no limit of its own)"
    return f"a task starts again: {'; '.join(restart_texts)}{limit}. A pod that was evicted, or lost with its node, is always replaced."


def _exit_codes(builder: SpecBuilder) -> str:
    final = " Of roles with exit_code 1 to 127 end the run." if _any_restarts(builder, "exit_code") else ""
    return f"0 is success, 2 is final, 75 and 143 ask for another start; all others are failures.{final}"


def _end(builder: SpecBuilder) -> str:
    first = "the chief" if builder.leader_role == "chief" else "worker-0"
    workers = " and of all workers" if builder.success == "all_workers" else ""
    others = [
        text
        for name, text in (
            ("ps", "a ps is ended at once"),
            (
                "worker",
                f"workers have `limits.worker_grace` ({_DEFAULT.worker_grace})"
                if _has_role(builder, "ps")
                else "workers have `limits.grace_period`",
            ),
            ("evaluator", f"the evaluator has `limits.evaluator_grace` ({_DEFAULT.evaluator_grace})"),
        )
        if _has_role(builder, name) and not (name == "worker" and workers)
    ]
    then = f" Then {', '.join(others)}." if others and not builder.is_single_task else ""
    watched = ""
    if any(role.is_entrypoint for role in builder.roles if role.name == builder.leader_role) and not builder.is_single_task:
        watched = " The entrypoint of the leader's image cannot end the others: `launcher up` or `launcher wait` has to run to do so."
    jobs_stay = " Its Jobs stay until `launcher down`." if "ttl" not in builder.spec.get("kubernetes", {}) else ""
    return f"the run succeeds with exit 0 of {first}{workers}.{then}{watched}{jobs_stay}"


def _tf_config(builder: SpecBuilder) -> str:
    if builder.is_single_task:
        return "none on Kubernetes, as before for a job of one replica."
    evaluator = " The evaluator is not in `cluster`, as in older versions of TFJob." if _has_role(builder, "evaluator") else ""
    master = " The chief is called `master`, as before: `tf_config: {master: true}`." if "tf_config" in builder.spec else ""
    return f"the same roles and indices in the same order, at port {PORT}; hosts have other names, and `environment` is not set.{evaluator}{master}"


def _start(builder: SpecBuilder) -> str:
    timeout = builder.spec.get("limits", {}).get("start_timeout", _DEFAULT.start_timeout)
    return f"tasks wait {timeout} for each other (`limits.start_timeout`), then the run fails; those of a TFJob waited without a limit."


def _image(builder: SpecBuilder) -> str:
    if all(role.is_entrypoint for role in builder.roles):
        return "its entrypoint runs by itself; write its words as `command` to run it under the trainer's parent (docs/programs.md)."
    return "the programs run under a small parent, which needs Python 3.8 or later there; for an image without it write `supervise: false`."


def _has_role(builder: SpecBuilder, name: str) -> bool:
    return any(role.name == name for role in builder.roles)


def _any_restarts(builder: SpecBuilder, restart: str) -> bool:
    return any(_restart(role) == restart for role in builder.roles)


def _restart(role: RoleBuilder) -> str:
    return str(role.fields.get("restart", "on_failure"))
