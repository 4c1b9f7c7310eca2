"""Converts a TFJob to a spec: the steps in order, from the bytes of a file to the text of a spec and the remarks."""

from dataclasses import dataclass
from pathlib import Path

from launcher.errors import Problem, SpecError
from launcher.spec import loader
from launcher.spec.document import Document
from launcher.spec.problems import all_of
from launcher.spec.role_programs import sets_variables
from launcher.tfjob import documents, finish, job_fields, replica_specs, summary, templates, writing
from launcher.tfjob.builder import SpecBuilder
from launcher.tfjob.documents import OtherObject
from launcher.tfjob.field_reader import FieldReader, Remark


@dataclass(frozen=True)
class Conversion:
    """The spec converted from a TFJob, with the remarks and the differences between both."""

    name: str
    strategy: str
    tasks: dict[str, int]  # role -> number
    text: str
    remarks: list[Remark]
    differences: list[summary.Difference]
    others: list[OtherObject]
    has_env: bool  # whether the text has values of variables, which may be passwords


def convert(data: bytes, file: str, *, name: str | None = None, directory: Path, output: str) -> Conversion:
    """Return the spec of the TFJob in a file; `name` chooses one of several. `output` is the name of the spec, which will be in `directory`.

    Raises SpecError with every problem if there is no TFJob, or it cannot be converted.
    """
    contents = documents.read(data, file)
    document = _select_job(contents.jobs, file, name)
    builder = SpecBuilder(FieldReader(document))
    for finding in templates.in_values(document):
        builder.reader.problems.append(document.problem(finding))
    for path in templates.in_words(document):
        builder.reader.add_remark(path, "`{{` or `{%` is carried over as it is", "if the file is a template, render it first")
    job_fields.read(builder)
    replica_specs.read(builder)
    _raise_for(builder.reader.problems)
    finish.finish(builder)
    differences = summary.differences(builder)
    text = writing.spec_text(builder, file, differences)
    _check(builder, text, output, directory)
    return Conversion(
        name=builder.spec["name"],
        strategy=builder.spec["strategy"],
        tasks={role.name: role.replicas for role in builder.roles},
        text=text,
        remarks=sorted(builder.reader.remarks, key=lambda remark: remark.line),
        differences=differences,
        others=contents.others,
        has_env=sets_variables(builder.spec),
    )


def _select_job(jobs: list[tuple[str, Document]], file: str, name: str | None) -> Document:
    """Return the only TFJob, or the one with this name. Raises SpecError."""
    by_name = dict(jobs)
    matches = [job for job_name, job in jobs if name in {None, job_name}]
    if len(matches) == 1:
        return matches[0]
    location = (matches[-1] if matches else jobs[-1][1]).location(())
    message = f"there are {len(matches)} TFJobs in the file" if matches else f"there is no TFJob called {name} in the file"
    if len(by_name) > 1 or not matches:
        problem = Problem(
            file, location.line, 1, "", f"{message}: {all_of(by_name)}", "one at a time", f"choose one: --name {next(iter(by_name))}"
        )
    else:
        message = f"{message}, all called {next(iter(by_name)) or 'nothing'}"
        problem = Problem(file, location.line, 1, "", message, "one at a time", "put each into its own file")
    raise SpecError([problem], documents.SUBJECT)


def _raise_for(problems: list[Problem]) -> None:
    """Raise SpecError if there are problems: for each field only the first one."""
    by_location = {(problem.line, problem.column, problem.path): problem for problem in reversed(problems)}
    if by_location:
        raise SpecError([by_location[location] for location in sorted(by_location)], documents.SUBJECT)


def _check(builder: SpecBuilder, text: str, output: str, directory: Path) -> None:
    """Raise SpecError if the spec is not valid, with the locations of the TFJob's fields."""
    reader = builder.reader
    for finding, problem in loader.problems_of(text, output, directory):
        source = builder.source_of(finding.path)
        remedy = f"change it in the TFJob, or afterwards in the spec: {problem.remedy}"
        reader.add_problem(source, f"`{problem.path}` in the spec: {problem.message}", problem.expected, remedy)
    _raise_for(reader.problems)
