"""The rules of the program that tasks run: `train`, a `command` of the spec or of a role, or the entrypoint of an image."""

from collections.abc import Iterator
from typing import Any

from launcher.spec import names
from launcher.spec.containers import Env, FromSecret
from launcher.spec.problems import FieldError, Finding, Path
from launcher.spec.role_programs import ROLES, containers_of, required_roles, roles_of
from launcher.spec.rule_context import RuleContext

# Keys of a role that are only for a user's own program.
_PROGRAM_KEYS = ("command", "args", "working_dir", "restart")
_EXPECTED = "either `train`, for the built-in trainer, or `command`, for a program of your own"


def _roles(context: RuleContext) -> dict[str, dict[str, Any]]:
    """Return the roles that are mappings as the file has them, including wrong values."""
    roles = context.document.value.get("roles")
    written = {role: roles.get(role) for role in ROLES} if isinstance(roles, dict) else {}
    return {role: value for role, value in written.items() if isinstance(value, dict)}


def _is_given(context: RuleContext, key: str) -> bool:
    """Return whether the spec has a key, at its top or in a role."""
    return any(written.get(key) is not None for written in (context.document.value, *_roles(context).values()))


def has_command(context: RuleContext) -> bool:
    """Return whether there is a `command`, valid or not."""
    return _is_given(context, "command")


def has_image(context: RuleContext) -> bool:
    """Return whether there is an `image`, valid or not."""
    return _is_given(context, "image")


def runs_a_program(context: RuleContext) -> bool:
    """Return whether the tasks run programs of the user's own: a `command`, or without `train` the entrypoint of an `image`."""
    return has_command(context) or (context.document.value.get("train") is None and has_image(context))


def train_or_command(context: RuleContext) -> Iterator[Finding]:
    """Each role has exactly one program to run."""
    document = context.document.value
    trains = document.get("train") is not None
    if trains and document.get("command") is not None:
        yield Finding(("command",), "`train` and `command` exclude each other", _EXPECTED, "remove one of the two", on="key")
    if trains or document.get("command") is not None or document.get("image") is not None or context.is_empty(("train",)):
        return
    if context.invalid & {("train",), ("command",), ("image",), ("roles",)}:
        return
    if not runs_a_program(context):
        message = "there is nothing to run: neither `train` nor `command`"
        yield Finding((), message, _EXPECTED, "add `train: {workload: mnist_mlp}`, for example")
        return
    for role in roles_of(context.spec):
        written = _roles(context).get(role, {})
        if written.get("command") is None and written.get("image") is None:
            message = f"the {role} has nothing to run: neither a `command` nor an `image`, its own or the spec's"
            expected = "`command`, for a program of your own, or an `image` whose entrypoint runs"
            yield Finding(
                ("roles", role),
                message,
                expected,
                "add `command: [python, train.py]` here, or at the top of the spec for all roles",
                on="key",
            )


def role_keys_fit_train(context: RuleContext) -> Iterator[Finding]:
    """Beside `train`, a role has no key that is for a user's own program."""
    if context.document.value.get("train") is None:
        return
    for role, written in _roles(context).items():
        for key in _PROGRAM_KEYS:
            if key in written:
                message = f"`{key}` of a role is for a program of your own, and the spec has `train`"
                remedy = f"remove `{key}`, or `train`"
                yield Finding(
                    ("roles", role, key), message, "no `command`, `args`, `working_dir` or `restart` beside `train`", remedy, on="key"
                )


def restart_fits(context: RuleContext) -> Iterator[Finding]:
    """A role's `restart` agrees with its `max_restarts`, and lets the run end."""
    spec = context.spec
    roles = roles_of(spec)
    for name, role in roles.items():
        if role.restart == "never" and role.max_restarts:
            message = f"`restart` is never, and `max_restarts` {role.max_restarts}"
            yield Finding(
                ("roles", name, "max_restarts"), message, "no `max_restarts` beside `restart: never`", "remove one of the two", on="key"
            )
        if role.restart == "always" and name in required_roles(spec) and spec.train is None:
            message = f"`restart` is always, but the run succeeds when the {name} exits with 0: it would never end"
            yield Finding(("roles", name, "restart"), message, "on_failure, never or exit_code", "write on_failure, or remove `restart`")


def success_of_command(context: RuleContext) -> Iterator[Finding]:
    """`success` is only for a user's own program, whose tasks each end by themselves."""
    if context.document.value.get("success") is not None and not runs_a_program(context):
        yield Finding(("success",), "`success` is for a `command`, and there is none", "no `success` beside `train`", "remove it", on="key")


def command_names_program(context: RuleContext) -> Iterator[Finding]:
    """A command starts with a program."""
    commands: dict[Path, list[str] | None] = {("command",): context.spec.command}
    commands |= {("roles", name, "command"): role.command for name, role in roles_of(context.spec).items()}
    for path, command in commands.items():
        if command and context.is_valid(path) and not command[0].strip():
            yield Finding((*path, 0), "the command starts with an empty word", "a program, such as python", "name the program")


def supervise_is_for_a_command(context: RuleContext) -> Iterator[Finding]:
    """`supervise` is only set beside a `command`, and only false for an image of the user's own."""
    if "supervise" not in context.document.value:
        return
    expected = "`supervise` beside a `command` and an `image` of your own"
    if not has_command(context):
        yield Finding(("supervise",), "`supervise` is for a `command`, and there is none", expected, "remove `supervise`", on="key")
    elif not context.spec.supervise and not has_image(context):
        message = "`supervise` is false, but the image is the project's own, which has Python"
        yield Finding(("supervise",), message, expected, "remove `supervise`, or name the image without Python in `image`", on="key")


def master_fits_program(context: RuleContext) -> Iterator[Finding]:
    """Only the chief of a user's own program can be called master; the built-in trainer only knows `chief`."""
    if not context.spec.tf_config.master:
        return
    expected, remedy = "`tf_config: {master: true}` beside a `command` and a chief", "remove `tf_config`"
    if not runs_a_program(context):
        yield Finding(("tf_config", "master"), "`master` is for a `command`, and there is none", expected, remedy, on="key")
    elif context.spec.roles.chief is None:
        yield Finding(("tf_config", "master"), "there is no chief to call `master`", expected, remedy, on="key")


def env_file_has_a_use(context: RuleContext) -> Iterator[Finding]:
    """An `env_file` is only set if a variable, or the URL of a webhook, comes from a secret."""
    spec = context.spec
    environments = [spec.env, *(role.env for role in roles_of(spec).values()), *(container.env for _, container in containers_of(spec))]
    has_webhook = spec.notify is not None and spec.notify.webhook is not None
    from_secrets = any(isinstance(value, FromSecret) for variables in environments for value in variables.values())
    if spec.env_file is not None and not from_secrets and not has_webhook:
        message = "`env_file` is for variables that come from secrets, and there are none"
        remedy = "name the variables to take from it: `env: {TOKEN: {secret: my-secret, key: token}}`; or remove `env_file`"
        yield Finding(("env_file",), message, "`env` with a `{secret, key}` beside it", remedy, on="key")


def env_names(context: RuleContext) -> Iterator[Finding]:
    """Environment variables have usable names that are not the launcher's own."""
    environments: dict[Path, Env] = {("env",): context.spec.env}
    environments |= {("roles", name, "env"): role.env for name, role in roles_of(context.spec).items()}
    for path, variables in environments.items():
        for variable, value in variables.items():
            try:
                names.check_task_variable(variable)
                if isinstance(value, FromSecret):
                    names.check_can_be_secret(variable)
            except FieldError as error:
                yield Finding((*path, variable), error.message, error.expected, error.remedy, on="key")
