"""The rules of what the tasks run: `train`, a program of the spec's or of a role's own, or the entrypoint of an image."""

from collections.abc import Iterator
from typing import Any

from launcher.spec import names
from launcher.spec.containers import Env, FromSecret
from launcher.spec.problems import FieldError, Finding, Path
from launcher.spec.role_programs import ROLES, containers_of, required_roles, roles_of
from launcher.spec.rule_context import RuleContext

# Keys of a role that are for a program alone.
_OF_A_PROGRAM = ("command", "args", "working_dir", "restart")
_EXPECTED = "either `train`, for the built-in trainer, or `command`, for a program of your own"


def _roles(subject: RuleContext) -> dict[str, dict[str, Any]]:
    """Return the roles as they are written, where they are mappings: also those with values that are wrong."""
    given = subject.document.value.get("roles")
    written = {role: given.get(role) for role in ROLES} if isinstance(given, dict) else {}
    return {role: value for role, value in written.items() if isinstance(value, dict)}


def _is_given(subject: RuleContext, key: str) -> bool:
    """Return whether the spec has a key, at its top or in a role."""
    return any(written.get(key) is not None for written in (subject.document.value, *_roles(subject).values()))


def has_command(subject: RuleContext) -> bool:
    """Return whether there is a `command`, be it right or wrong."""
    return _is_given(subject, "command")


def has_image(subject: RuleContext) -> bool:
    """Return whether there is an `image`, be it right or wrong."""
    return _is_given(subject, "image")


def runs_a_program(subject: RuleContext) -> bool:
    """Return whether the tasks run programs of the user's own: a `command`, or without `train` the entrypoint of an `image`."""
    return has_command(subject) or (subject.document.value.get("train") is None and has_image(subject))


def train_or_command(subject: RuleContext) -> Iterator[Finding]:
    """There is one thing to run, for each role."""
    given = subject.document.value
    trains = given.get("train") is not None
    if trains and given.get("command") is not None:
        yield Finding(("command",), "`train` and `command` exclude each other", _EXPECTED, "remove one of the two", on="key")
    if trains or given.get("command") is not None or given.get("image") is not None or subject.is_empty(("train",)):
        return
    if subject.broken & {("train",), ("command",), ("image",), ("roles",)}:
        return
    if not runs_a_program(subject):
        message = "there is nothing to run: neither `train` nor `command`"
        yield Finding((), message, _EXPECTED, "add `train: {workload: mnist_mlp}`, for example")
        return
    for role in roles_of(subject.spec):
        written = _roles(subject).get(role, {})
        if written.get("command") is None and written.get("image") is None:
            message = f"the {role} has nothing to run: neither a `command` nor an `image`, its own or the spec's"
            expected = "`command`, for a program of your own, or an `image` whose entrypoint runs"
            yield Finding(
                ("roles", role), message, expected, "add `command: [python, train.py]` here, or for all roles above them", on="key"
            )


def role_of_a_program(subject: RuleContext) -> Iterator[Finding]:
    """Beside `train`, a role says nothing that is for a program of the user's own."""
    if subject.document.value.get("train") is None:
        return
    for role, written in _roles(subject).items():
        for key in _OF_A_PROGRAM:
            if key in written:
                message = f"`{key}` of a role is for a program of your own, and the spec has `train`"
                remedy = f"remove `{key}`, or `train`"
                yield Finding(("roles", role, key), message, "`image`, `env` and `max_restarts` at most, beside `train`", remedy, on="key")


def restart_fits(subject: RuleContext) -> Iterator[Finding]:
    """A role's `restart` agrees with its `max_restarts`, and lets the run end."""
    spec = subject.spec
    roles = roles_of(spec)
    for name, role in roles.items():
        if role.restart == "never" and role.max_restarts:
            message = f"`restart` is never, and `max_restarts` {role.max_restarts}"
            yield Finding(
                ("roles", name, "max_restarts"), message, "no `max_restarts` beside `restart: never`", "remove one of the two", on="key"
            )
        if role.restart == "always" and name in required_roles(spec) and spec.train is None:
            message = f"`restart` is always, and with the exit 0 of the {name} the run succeeds: it would never end"
            yield Finding(("roles", name, "restart"), message, "on_failure, never or exit_code", "write on_failure, or remove `restart`")


def success_of_command(subject: RuleContext) -> Iterator[Finding]:
    """Only a program's tasks end each by itself."""
    if subject.document.value.get("success") is not None and not runs_a_program(subject):
        yield Finding(
            ("success",), "`success` says when a `command` is done, and there is none", "no `success` beside `train`", "remove it", on="key"
        )


def words_of_command(subject: RuleContext) -> Iterator[Finding]:
    """A command starts with a program."""
    commands: dict[Path, list[str] | None] = {("command",): subject.spec.command}
    commands |= {("roles", name, "command"): role.command for name, role in roles_of(subject.spec).items()}
    for path, command in commands.items():
        if command and subject.known(path) and not command[0].strip():
            yield Finding((*path, 0), "the command starts with an empty word", "a program, such as python", "name the program")


def supervise_is_for_a_command(subject: RuleContext) -> Iterator[Finding]:
    """Only a command in another image than ours can be without its parent."""
    if "supervise" not in subject.document.value:
        return
    expected = "`supervise` beside a `command` and an `image` of your own"
    if not has_command(subject):
        yield Finding(("supervise",), "`supervise` is for a `command`, and there is none", expected, "remove `supervise`", on="key")
    elif not subject.spec.supervise and not has_image(subject):
        message = "`supervise` is false, and the project's own image, which has Python, is taken"
        yield Finding(("supervise",), message, expected, "remove `supervise`, or name the image without Python in `image`", on="key")


def master_is_a_program_s_chief(subject: RuleContext) -> Iterator[Finding]:
    """Only a program's chief can be called master: the built-in trainer knows the newer name alone."""
    if not subject.spec.tf_config.master:
        return
    expected, remedy = "`tf_config: {master: true}` beside a `command` and a chief", "remove `tf_config`"
    if not runs_a_program(subject):
        yield Finding(("tf_config", "master"), "`master` is for a `command`, and there is none", expected, remedy, on="key")
    elif subject.spec.roles.chief is None:
        yield Finding(("tf_config", "master"), "there is no chief that could be called master", expected, remedy, on="key")


def env_file_has_a_use(subject: RuleContext) -> Iterator[Finding]:
    """A file with values of secrets is for variables that come from some, that of a webhook's URL among them."""
    spec = subject.spec
    given = [spec.env, *(role.env for role in roles_of(spec).values()), *(one.env for _, one in containers_of(spec))]
    has_webhook = spec.notify is not None and spec.notify.webhook is not None
    from_secrets = any(isinstance(value, FromSecret) for variables in given for value in variables.values())
    if spec.env_file is not None and not from_secrets and not has_webhook:
        message = "`env_file` has the values of variables that come from secrets, and no variable does"
        remedy = "name the variables to take from it: `env: {TOKEN: {secret: my-secret, key: token}}`; or remove `env_file`"
        yield Finding(("env_file",), message, "`env` with a `{secret, key}` beside it", remedy, on="key")


def env_names(subject: RuleContext) -> Iterator[Finding]:
    """Environment variables have usable names that are not the launcher's own."""
    given: dict[Path, Env] = {("env",): subject.spec.env}
    given |= {("roles", name, "env"): role.env for name, role in roles_of(subject.spec).items()}
    for path, variables in given.items():
        for variable, value in variables.items():
            try:
                names.check_env_name(variable)
                if isinstance(value, FromSecret):
                    names.check_secret(variable)
            except FieldError as wrong:
                yield Finding((*path, variable), wrong.message, wrong.expected, wrong.remedy, on="key")
