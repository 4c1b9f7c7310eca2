"""The `notify` section of a spec: the command or webhook that gets a message when a run succeeds, fails or stalls."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from launcher.notify.delivery import WEBHOOK_VARIABLE
from launcher.spec import names
from launcher.spec.containers import Command
from launcher.spec.fields import ObjectName, Section
from launcher.spec.problems import FieldError

_REMEDY = "write `webhook: {secret: my-webhook}`, and create that Secret: kubectl create secret generic my-webhook --from-literal=url=URL"


def _webhook(value: object) -> object:
    if isinstance(value, str):  # it may be the URL, so the message does not show it
        raise FieldError(
            "`webhook` is a string; its URL is a secret, which must not be in a file", "a mapping with the `secret` that has it", _REMEDY
        )
    return value


def _secret(value: object) -> object:
    if isinstance(value, str) and "://" in value:
        raise FieldError("this is a URL; it is a secret, which must not be in a file", "the name of the Secret that has it", _REMEDY)
    return value


class Webhook(Section):
    """A server that gets the message by HTTP: a POST of JSON to a URL that comes from a secret."""

    secret: Annotated[ObjectName, BeforeValidator(_secret)] = Field(
        description=f"The Secret with the URL. Runs on this machine and in Docker take the URL from the variable {WEBHOOK_VARIABLE}, set where "
        "`launcher up` is called or in `env_file`."
    )
    key: Annotated[str, AfterValidator(names.check_secret_key)] = Field("url", description="The key of the URL in the Secret.")
    allow_http: bool = Field(False, description="Whether the URL may begin with http:, which sends the URL and the message unencrypted.")


class Notify(Section):
    """Messages when the run succeeds, fails or stalls, one each: to a program, to a webhook, or to both."""

    command: Command | None = Field(
        None,
        description="A program that gets the message as JSON on stdin and in variables NOTIFY_*. A path with a slash is relative to the spec. On "
        "this machine and in Docker the run's supervisor runs it, in the spec's directory. On Kubernetes only a launcher that watches the run does: "
        "`up` in the spec's directory, `wait` in the directory where it is called.",
    )
    webhook: Annotated[Webhook | None, BeforeValidator(_webhook, json_schema_input_type=Webhook)] = Field(
        None,
        description="A server that gets the message; on Kubernetes from the attendant, or without one from a launcher that watches the run.",
    )
