"""A TFJob becomes a spec: the steps in their order, from a file's bytes to the text of a spec and what there is to say."""

from dataclasses import dataclass
from pathlib import Path

from launcher.errors import Problem, SpecError
from launcher.spec import loader
from launcher.spec.document import Document
from launcher.spec.problems import all_of
from launcher.tfjob import documents, finish, job_fields, replica_specs, summary, templates, writing
from launcher.tfjob.documents import OtherObject
from launcher.tfjob.draft import Draft
from launcher.tfjob.reading import Reading, Remark


@dataclass(frozen=True)
class Imported:
    """The text of a spec that says what a TFJob did, as far as one can."""

    name: str
    strategy: str
    tasks: dict[str, int]  # role -> number
    text: str
    remarks: list[Remark]
    differences: list[summary.Difference]
    others: list[OtherObject]
    has_env: bool  # whether values of variables stand in the text, which may be passwords


def convert(data: bytes, file: str, *, name: str | None = None, directory: Path, output: str) -> Imported:
    """Return the spec of the TFJob in a file; `name` chooses one of several. `output` is what the spec will be called, in `directory`.

    Raises SpecError with every problem where there is none, or it cannot be a spec.
    """
    contents = documents.read(data, file)
    document = _chosen(contents.jobs, file, name)
    draft = Draft(Reading(document))
    for finding in templates.in_values(document):
        draft.reading.problems.append(document.problem(finding))
    job_fields.read(draft)
    replica_specs.read(draft)
    _raise_for(draft.reading.problems)
    finish.finish(draft)
    differences = summary.differences(draft)
    text = writing.written(draft, file, differences)
    _check(draft, text, output, directory)
    return Imported(
        name=draft.spec["name"],
        strategy=draft.spec["strategy"],
        tasks={role.name: role.replicas for role in draft.roles},
        text=text,
        remarks=sorted(draft.reading.remarks, key=lambda remark: remark.line),
        differences=differences,
        others=contents.others,
        has_env=any(fields.get("env") for role in draft.roles for fields in (role.fields, *(one.fields for one in role.extra_containers))),
    )


def _name(document: Document) -> str:
    metadata = document.value.get("metadata")
    found = metadata if isinstance(metadata, dict) else {}
    return str(found.get("name") or found.get("generateName") or "")


def _chosen(jobs: list[Document], file: str, name: str | None) -> Document:
    """Return the one TFJob, or the one that is called so. Raises SpecError."""
    there = {_name(job): job for job in jobs}
    fitting = [job for job in jobs if name in {None, _name(job)}]
    if len(fitting) == 1:
        return fitting[0]
    location = (fitting or jobs)[-1].location(())
    message = f"there are {len(fitting)} TFJobs in the file" if fitting else f"there is no TFJob called {name} in the file"
    if len(there) > 1 or not fitting:
        problem = Problem(
            file, location.line, 1, "", f"{message}: {all_of(there)}", "one at a time", f"choose one: --name {next(iter(there))}"
        )
    else:
        message = f"{message}, all called {next(iter(there)) or 'nothing'}"
        problem = Problem(file, location.line, 1, "", message, "one at a time", "put each into a file of its own")
    raise SpecError([problem], documents.WHAT)


def _raise_for(problems: list[Problem]) -> None:
    """Raise SpecError where there are problems: each field once, with what was found out about it first."""
    by_location = {(problem.line, problem.column, problem.path): problem for problem in reversed(problems)}
    if by_location:
        raise SpecError([by_location[location] for location in sorted(by_location)], documents.WHAT)


def _check(draft: Draft, text: str, output: str, directory: Path) -> None:
    """Raise SpecError where the spec would not be valid, with the locations of the TFJob's fields."""
    reading = draft.reading
    for finding, problem in loader.problems_of(text, output, directory):
        origin = draft.origin(finding.path)
        remedy = f"change it in the TFJob, or afterwards in the spec: {problem.remedy}"
        reading.refuse(origin, f"`{problem.path}` in the spec: {problem.message}", problem.expected, remedy)
    _raise_for(reading.problems)
