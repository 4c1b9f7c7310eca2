"""`launcher render`: a spec as a Compose file or as manifests, which work without the launcher."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import Set, SpecFile
from launcher.cli.runs import DEFAULT_RUNS

EXAMPLES = (
    ("launcher render cluster.yaml --to compose", "prints it"),
    ("launcher render cluster.yaml --to compose -o compose.yaml && docker compose up", "a cluster of containers"),
)


def complete_target(incomplete: str) -> list[str]:
    """Offer what can be rendered to."""
    from launcher.render.targets import TARGETS

    return [name for name in TARGETS if name.startswith(incomplete)]


def render(
    file: SpecFile,
    *,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="What to write: compose.", autocompletion=complete_target)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there; stdout when left out.", show_default=False)
    ] = None,
    overrides: Set = None,
) -> None:
    """Write a spec as a file that Docker Compose runs by itself."""
    from launcher.cli.planning import planned
    from launcher.render.targets import Source, renderer, target

    wanted = target(to)
    spec, plan = planned(file, overrides or [], wanted.plan, DEFAULT_RUNS)
    directory = Path.cwd() if output is None else output.absolute().parent
    text = renderer(to)(Source(spec, plan, directory, _title(file, to, overrides or [])))
    if output is None:
        print(text, end="")
        return
    output.write_text(text, encoding="utf-8")


def _title(file: Path, to: str, overrides: list[str]) -> str:
    import shlex

    # The name alone: how the path to it is spelt depends on where one stands.
    words = ["launcher", "render", file.name, "--to", to]
    for override in overrides:
        words += ["--set", override]
    return shlex.join(words)
