"""`launcher import`: a TFJob as a spec."""

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli import output_file, streams
from launcher.cli.options import Json
from launcher.errors import SpecError
from launcher.files import write
from launcher.formats import count
from launcher.tfjob.convert import Conversion

EXAMPLES = (
    ("launcher import tfjob.yaml -o cluster.yaml", "writes the spec, and lists how the run will differ"),
    ("launcher import tfjob.yaml", "prints the spec; remarks go to stderr"),
    ("kubectl get tfjob mnist -o yaml | launcher import - -o mnist.yaml", "a TFJob of the cluster"),
    ("launcher import all.yaml --name mnist -o mnist.yaml", "one of several TFJobs in a file"),
)
_STDIN = Path("-")


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file with the TFJob; - is stdin.", show_default=False)],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The spec's file; by default stdout.", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The TFJob's name, if there are several.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a spec from a TFJob, and list how the run will differ."""
    from launcher.tfjob.convert import convert

    if output is not None:
        output_file.check(output, force=force)
    title = "stdin" if file == _STDIN else str(file)
    directory = Path.cwd() if output is None else output.absolute().parent
    imported = convert(_read(file), title, name=name, directory=directory, output=str(output or "the spec"))
    if output is not None:
        write(output, imported.text, private=imported.has_env)
    if as_json:
        print(json.dumps(_as_json(imported, title, output)))
        return
    if output is None:
        streams.print_yaml(imported.text)
    print(_summary(imported, title, output), file=sys.stderr if output is None else sys.stdout)


def _read(file: Path) -> bytes:
    from launcher.spec.syntax import MAX_BYTES, unreadable

    if file == _STDIN:
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        problem = unreadable(str(file), error, "the file of a TFJob", "check the path, or give - for stdin")
        raise SpecError([problem], "the TFJob") from None


def _as_json(imported: Conversion, title: str, output: Path | None) -> dict[str, object]:
    fields: dict[str, object] = {"from": title, "name": imported.name, "strategy": imported.strategy, "tasks": imported.tasks}
    fields["remarks"] = [asdict(remark) for remark in imported.remarks]
    fields["differences"] = {difference.about: difference.message for difference in imported.differences}
    fields["others"] = [asdict(other) for other in imported.others]
    return fields | ({"text": imported.text} if output is None else {"file": str(output)})


def _summary(imported: Conversion, title: str, output: Path | None) -> str:
    from launcher.tfjob.field_reader import grouped

    roles = ", ".join(count(number, role) for role, number in imported.tasks.items())
    action = f"wrote {output}" if output is not None else "imported"
    lines = [f"{action}: {imported.name}, {count(sum(imported.tasks.values()), 'task')} ({roles}), {imported.strategy}, from {title}"]
    if imported.remarks:
        lines += ["", "Fields that changed or were left out:"]
        for line_numbers, paths, remark in grouped(imported.remarks):
            lines.append(f"  {title}:{line_numbers}: {paths}: {remark.message}")
            lines += [f"      to do: {remark.remedy}"] * bool(remark.remedy)
    if imported.others:
        lines += ["", "Other objects of the file, not imported; create them in the cluster before the run, with `kubectl apply`:"]
        lines += [f"  {title}:{other.line}: {other.kind} {other.name}".rstrip() for other in imported.others]
    lines += ["", "How the run differs from the TFJob's (docs/from-tfjob.md):"]
    lines += [f"  {difference.about}: {difference.message}" for difference in imported.differences]
    if output is not None:
        lines += ["", f"Next: `{shlex.join(['launcher', 'doctor', str(output), '--on', 'kubernetes'])}`, then the same command with `up`."]
    return "\n".join(lines)
