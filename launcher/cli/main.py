"""The `launcher` program: its table of verbs, the group that loads them, and the report of errors."""

import importlib
import keyword
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import launcher
from launcher.cli import streams
from launcher.cli.errors import INTERRUPTED, report
from launcher.errors import UsageError, did_you_mean

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
_WITHOUT_VALUE = re.compile(r"--[a-z-]+=")


@dataclass(frozen=True)
class Verb:
    """One verb: its panel in the help, its module, its function there, and its line of help.

    The line of help repeats the function's docstring, so that `--help` imports no verb; a test compares them.
    """

    panel: str
    module: str
    function: str
    summary: str


def _verb(name: str, panel: str, summary: str) -> tuple[str, Verb]:
    # Module and function have the verb's name, with an underscore if that is a keyword of Python (`import_`).
    word = f"{name}_" if keyword.iskeyword(name) else name
    return name, Verb(panel, f"launcher.cli.{word}", word, summary)


SPEC = "Describe a run"
RUN = "Run it"
WATCH = "Look at it"

VERBS: dict[str, Verb] = dict(
    [
        _verb("init", SPEC, "Write a commented starter spec."),
        _verb("import", SPEC, "Write a spec from a TFJob, and list how the run will differ."),
        _verb("validate", SPEC, "Check specs; every problem is reported at once."),
        _verb("plan", SPEC, "Show a spec's plan: tasks, addresses, resources, TF_CONFIG."),
        _verb("render", SPEC, "Write a spec for Docker Compose or Kubernetes, to run by itself."),
        _verb("schema", SPEC, "Print the spec's JSON Schema, for editors."),
        _verb("image", RUN, "Build the image that containers start from."),
        _verb("doctor", RUN, "Check a machine, an engine or a cluster; with a spec, whether it fits."),
        _verb("diff", RUN, "Show what `up` would change."),
        _verb("up", RUN, "Run a spec, and follow it until it is done."),
        _verb("wait", RUN, "Wait until a run has ended; its result is the exit code."),
        _verb("down", RUN, "Stop a run after a last checkpoint."),
        _verb("ls", WATCH, "List the runs."),
        _verb("status", WATCH, "Show the state of a run and of each task."),
        _verb("logs", WATCH, "Show the tasks' output."),
        _verb("stacks", WATCH, "Print the Python stacks of each task's threads."),
        _verb("get", WATCH, "Copy a run's model, checkpoints, logs or results here."),
        _verb("tensorboard", WATCH, "Open TensorBoard on a run's logs."),
    ]
)


class VerbGroup(TyperGroup):
    """The verbs of VERBS. Listing them imports none; a verb is imported when the command line uses it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order of the table."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb as help and completion need it, or None for an unknown name."""
        del ctx
        verb = VERBS.get(cmd_name)
        return verb and TyperCommand(cmd_name, help=verb.summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the verb that the command line names, imported. Raises UsageError for an unknown one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise UsageError(f"there is no verb {args[0]!r}", f"{did_you_mean(args[0], VERBS)}`launcher --help` lists the verbs")
        if not ctx.resilient_parsing:  # completion
            _refuse_empty(args)
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(str(name)), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs for the help, a section a panel."""
        del ctx
        width = max(map(len, VERBS))
        for panel in dict.fromkeys(verb.panel for verb in VERBS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), verb.summary) for name, verb in VERBS.items() if verb.panel == panel])


def _refuse_empty(words: Sequence[str]) -> None:
    """Raise UsageError for an empty word after the verb: a name or value is never empty on purpose, and an empty path would mean the working directory."""
    for before, word in pairwise(words):
        if before == "--grep" or word == "--grep=":  # each line has an empty pattern
            continue
        if not word or _WITHOUT_VALUE.fullmatch(word):
            option = before.partition("=")[0]  # its value may be a secret
            message = f"{word} has no value" if word else f"the word after {option} is empty"
            raise UsageError(message, "give it a value, or leave it out; a variable of the shell that is not set is empty")


def load(name: str) -> Any:
    """Import one verb and return it as a command."""
    verb = VERBS[name]
    module = importlib.import_module(verb.module)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, context_settings=CONTEXT_SETTINGS, epilog=_examples(module.EXAMPLES))(getattr(module, verb.function))
    return typer.main.get_command(single)


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    # Without the \b, click would rewrap the lines as a paragraph.
    return "\b\nExamples:\n" + "\n".join(f"  {line}\n      {what}" for line, what in examples)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"launcher {launcher.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="launcher",
    cls=VerbGroup,
    context_settings=CONTEXT_SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def describe(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    """Run distributed TensorFlow from one YAML file.

    launcher init && launcher up cluster.yaml
    """


def run(argv: Sequence[str]) -> int:
    """Run the command line `argv` (without the program's name) and return the exit code.

    Raises only SystemExit, for a signal in `get`. Other errors are reported on stderr, with a traceback if LAUNCHER_DEBUG is set.
    """
    streams.prepare()
    try:
        result = typer.main.get_command(app).main(list(argv) or ["--help"], prog_name="launcher", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last place where an error can be reported without a traceback
        return report(error, as_json="--json" in argv)
    return result if isinstance(result, int) else 0


def _discard_stdout() -> None:
    # The reader of our output is gone; flushing the buffer at exit would raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
