"""`launcher render`: a spec as a Compose file or as manifests, which run without the launcher."""

import itertools
import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli import output_file, streams
from launcher.cli.options import Json, Set, SpecFile, matching
from launcher.cli.run_lookup import DEFAULT_RUNS
from launcher.errors import UsageError
from launcher.files import write
from launcher.render.targets import RENDER_TARGETS, RenderSource, target

EXAMPLES = (
    ("launcher render cluster.yaml --to compose", "prints the file"),
    ("launcher render cluster.yaml --to compose -o compose.yaml && docker compose up", "a cluster of containers"),
    ("launcher render cluster.yaml --to kubernetes | kubectl apply -f -", "a cluster of pods"),
    ("launcher render cluster.yaml --to kubernetes -o k8s && kubectl apply -k k8s", "one file a kind, with a kustomization"),
)


def complete_target(incomplete: str) -> list[str]:
    """Offer the render targets."""
    return matching(RENDER_TARGETS, incomplete)


def render(
    file: SpecFile,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="TARGET", help=f"The target: {', '.join(RENDER_TARGETS)}.", autocompletion=complete_target)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Write it there, a directory for manifests; stdout when left out.", show_default=False
        ),
    ] = None,
    set_options: Set = None,
    as_json: Json = False,
) -> None:
    """Write a spec for Docker Compose or Kubernetes, to run by itself."""
    from launcher.plan.spec_file import plan_file
    from launcher.spec import role_programs

    render_target = target(to)
    spec, plan = plan_file(file, set_options or [], render_target.plan_target, DEFAULT_RUNS)
    directory = Path.cwd() if output is None else output.absolute().parent
    source = RenderSource(spec, plan, directory, _title(file, to, set_options or []))
    if output is None:
        text = render_target.render(source)
        if as_json:
            print(json.dumps({"to": to, "name": spec.name, "text": text}))
        else:
            streams.print_yaml(text)
        return
    private = role_programs.sets_variables(spec.model_dump())
    if render_target.directory:
        files = render_target.files(source)
        _write_directory(output, files, private=private)
    else:
        files = {output.name: render_target.render(source)}
        _write_file(output, files[output.name], [file, *([Path(spec.env_file)] if spec.env_file else [])], private=private)
    if as_json:
        written = [str(output / name) if render_target.directory else str(output) for name in files]
        print(json.dumps({"to": to, "name": spec.name, "files": written}))


def _write_file(output: Path, text: str, inputs: list[Path], *, private: bool) -> None:
    """Write a file. An earlier rendering is replaced; any other file, and the spec itself, is refused."""
    output_file.check(output, "compose.yaml")
    if output.is_file():  # no pipe and no terminal
        if any(path.exists() and output.samefile(path) for path in inputs):
            raise UsageError(f"{output} is an input of this rendering", "name another file, or write to stdout: > FILE")
        with output.open("rb") as existing:
            first = existing.readline(4096).decode("utf-8", "replace")
        if first and not _is_rendered(first):
            raise UsageError(f"{output} exists and was not rendered", "name another file, or remove this one first")
    write(output, text, private=private)


def _write_directory(directory: Path, files: dict[str, str], *, private: bool) -> None:
    """Create a directory and write files into it. Those of an earlier rendering are replaced; any other YAML file there is refused."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file; manifests are written into a directory", "name a directory, or write to stdout: > FILE")
    existing = {path.name for path in directory.glob("*.yaml")}
    rendered = _rendered(directory, existing)
    if others := sorted(existing - rendered):
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        raise UsageError(
            f"{directory} has YAML files that were not rendered: {', '.join(others[:5])}{more}",
            "remove these files, or name a directory only for the manifests; a kustomization of your own elsewhere can list it in `resources`",
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name in rendered - files.keys():
        (directory / name).unlink()
    for name, text in files.items():
        write(directory / name, text, private=private)


def _is_rendered(text: str) -> bool:
    return " Made by: launcher render " in text.partition("\n")[0]


def _rendered(directory: Path, names: set[str]) -> set[str]:
    """Return those of the files `names` that an earlier rendering wrote, as its kustomization lists them."""
    import yaml

    from launcher.render.kubernetes.manifests import KUSTOMIZATION

    if not _is_rendered(written := _text(directory / KUSTOMIZATION)):
        return set()
    try:
        listed = names.intersection(yaml.safe_load(written)["resources"])
    except (yaml.YAMLError, LookupError, TypeError):
        return set()
    return {KUSTOMIZATION, *(name for name in listed if _is_manifest(name, _text(directory / name)))}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # not a rendered file
        return ""


def _is_manifest(name: str, text: str) -> bool:
    """Return whether all objects in a file are managed by the launcher, and of the kind that the file is named after."""
    import yaml

    from launcher.render.kubernetes.objects import MANAGED_BY_LABEL

    try:
        owners = {(f"{one['kind'].lower()}.yaml", one["metadata"]["labels"][MANAGED_BY_LABEL]) for one in yaml.safe_load_all(text)}
    except (yaml.YAMLError, LookupError, TypeError, AttributeError):
        return False
    return owners == {(name, "launcher")}


def _title(file: Path, to: str, set_options: list[str]) -> str:
    # Without the directory: the path depends on the working directory.
    words = ["launcher", "render", file.name, "--to", to]
    for option in set_options:
        words += ["--set", _without_secrets(option)]
    return " ".join(map(_quoted, words))


def _without_secrets(option: str) -> str:
    """Return PATH=VALUE, with `...` for a value that sets variables: rendered files are shared, command lines are not."""
    path, equals, value = option.partition("=")
    return f"{path}{equals}..." if "env" in map(str.strip, path.split(".")) or _has_env(value) else option


def _has_env(value: str) -> bool:
    """Return whether a value, which is YAML, has a key `env` at any depth, or may have it."""
    import yaml

    # The override of a role's pods may have it, too, as a list. The key may have an anchor or a tag, or be an alias of one.
    tokens = (token for token in yaml.scan(value, Loader=yaml.SafeLoader) if not isinstance(token, yaml.AnchorToken | yaml.TagToken))
    keys = [key for first, key in itertools.pairwise(tokens) if isinstance(first, yaml.KeyToken)]
    return any(isinstance(key, yaml.AliasToken) or (isinstance(key, yaml.ScalarToken) and key.value == "env") for key in keys)


def _quoted(word: str) -> str:
    """Return a word quoted for a shell, in one line."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (f"\\{letter}" if letter in "\\'" else letter if letter.isprintable() else _escaped(letter) for letter in word)
    return f"$'{''.join(escaped)}'"


def _escaped(letter: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(letter) or f"\\U{ord(letter):08x}"
