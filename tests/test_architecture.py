"""The imports between packages, and rules for every file of the project."""

import ast
import functools
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import launcher
import trainer

ROOT = Path(__file__).parents[1]
SHARED = {
    "trainer.settings",
    "trainer.settings_rules",
    "trainer.strategies",
    "trainer.exit_codes",
    "trainer.events",
    "trainer.stack_reading",
    "trainer.stacks",
    "trainer.workloads.catalog",
}
# Modules of the trainer's parent process, which must be small and start at once.
PARENT = sorted({"trainer.__main__", "trainer.parent", "trainer.peers", "trainer.tf_config"} | SHARED)
HEAVY = ("tensorflow", "keras", "numpy", "tensorboard", "docker", "kubernetes")
MOST_LINES = 500  # a module must fit in a reader's head
FRAGMENT_LINES = 60  # a module so short with one importer belongs in that one, unless a rule separates them
MOST_FRAGMENTS = 6


@functools.cache
def tracked(*patterns: str) -> list[Path]:
    """Return the files of the project: what git tracks, and what is new and not ignored."""
    result = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(path for line in result.stdout.splitlines() if (path := ROOT / line).is_file())


@functools.cache
def tree_of(path: Path) -> ast.Module | None:
    """Return a file's syntax tree; None if the file was removed after it was listed, for example by an editor that replaces it.

    A file that cannot be parsed is read again until it is unchanged for a second: an editor may just be writing it.
    """
    before = None
    while path.is_file():
        text = path.read_text(encoding="utf-8")
        try:
            return ast.parse(text)
        except SyntaxError:
            assert text != before, f"{path} is no Python"
            before = text
            time.sleep(1)
    return None


def trees(*patterns: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the path and the syntax tree of each file."""
    for path in tracked(*patterns):
        if tree := tree_of(path):
            yield path, tree


def modules(package: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the name and the syntax tree of each module of a package."""
    for path, tree in trees(f"{package}/*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), tree


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and all its statements, also those of classes and functions. They are a fifth of what `ast.walk` yields."""
    remaining: list[ast.AST] = [tree]
    while remaining:
        yield (node := remaining.pop())
        remaining += [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt | ast.excepthandler | ast.match_case)]


@functools.cache
def imports(tree: ast.Module) -> list[str]:
    """Return every module that a module may import, also inside functions; `from a import b` gives a and a.b."""
    names = []
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            assert node.module is not None
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def allowed_in_launcher(name: str) -> bool:
    if within(name, "trainer"):
        # A shared module, a name from one, or a package above one.
        return any(within(name, shared) or within(shared, name) for shared in SHARED)
    return not any(within(name, heavy) for heavy in ("tensorflow", "keras", "tensorboard"))


def imported_by(program: str) -> set[str]:
    """Return the modules that a new Python process has imported at the end of a program, which may use `sys`."""
    source = f"import sys\n{program}\nprint('imported:', *sys.modules)"
    result = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    prefix, *names = result.stdout.splitlines()[-1].split()
    assert prefix == "imported:"
    return set(names)


def test_the_launcher_imports_of_the_trainer_only_what_they_share_and_no_tensorflow() -> None:
    wrong = [f"{module} imports {name}" for module, tree in modules("launcher") for name in imports(tree) if not allowed_in_launcher(name)]
    assert wrong == []


def test_the_trainer_does_not_import_the_launcher() -> None:
    wrong = [f"{module} imports {name}" for module, tree in modules("trainer") for name in imports(tree) if within(name, "launcher")]
    assert wrong == []


def test_only_the_command_line_imports_the_command_line() -> None:
    others = [
        (module, tree) for module, tree in modules("launcher") if not within(module, "launcher.cli") and module != "launcher.__main__"
    ]
    wrong = [f"{module} imports {name}" for module, tree in others for name in imports(tree) if within(name, "launcher.cli")]
    assert wrong == []


def test_these_modules_import_nothing_heavy() -> None:
    light = [*PARENT, "launcher.__main__", "launcher.spec.loader", "launcher.plan.planner", "launcher.backend.model"]
    checks = [f"import {module}\nassert not {{*{HEAVY}}} & sys.modules.keys(), {module!r}" for module in light]
    assert imported_by("\n".join(checks)) >= {*light}


def test_the_kubernetes_backend_imports_none_of_the_clients_thousand_models() -> None:
    imported = imported_by("import launcher.backend.kubernetes.backend")
    assert "kubernetes.client" in imported
    assert [name for name in imported if name.startswith("kubernetes.client.models.")] == []


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a module's functions, classes and tables, methods as Class.method."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))


def test_the_map_of_behaviours_names_existing_code() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    references = re.findall(r"`((?:launcher|trainer)/[^`]*\.py):([^`]*)`", text)
    assert len(references) >= 300
    existing = {str(path.relative_to(ROOT)): set(defined(tree)) for path, tree in trees("launcher/*.py", "trainer/*.py")}
    missing = [f"{file}:{name}" for file, name in references if name not in existing.get(file, ())]
    missing += [path for path in re.findall(r"`((?:launcher|trainer|tests|docs)/[^`:]*\.\w+)`", text) if not (ROOT / path).exists()]
    assert missing == []


BACKENDS = ("local", "docker", "kubernetes")


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_outside_a_backend_imports_it(backend: str) -> None:
    """Only the registry names it, so no backend imports another, and the command line imports none."""
    package = f"launcher.backend.{backend}"
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules("launcher")
        for name in imports(tree)
        if within(name, package) and not within(module, package)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ["launcher/cli", "launcher/plan"])
def test_the_command_line_and_the_planner_compare_no_name_of_a_backend(package: str) -> None:
    """A difference between backends is a field of their entries in the registry, and between targets a field of their rules."""
    wrong = [
        f"{module}: {ast.unparse(node)}"
        for module, tree in modules(package)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in BACKENDS
    ]
    assert wrong == []


def test_the_command_line_gets_names_of_backends_from_the_registry() -> None:
    """Except for `kubernetes`, which is also a section of the spec."""
    wrong = [
        f"{module}:{node.lineno}: {node.value!r}"
        for module, tree in modules("launcher/cli")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in {"local", "docker"}
    ]
    assert wrong == []


def methods(tree: ast.Module, *, of: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the methods of a module's classes with the class's name, of those whose bases have `of` in their text."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and of in ",".join(map(ast.unparse, node.bases)):
            yield from ((node.name, part) for part in node.body if isinstance(part, ast.FunctionDef))


def unread(method: ast.FunctionDef) -> Iterator[str]:
    """Yield the parameters that a method never reads."""
    read = {node.id for part in method.body for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    yield from (each.arg for each in (*method.args.args, *method.args.kwonlyargs) if each.arg not in read | {"self"})


def test_no_backend_ignores_a_parameter_of_its_interface() -> None:
    """A parameter that one of them ignores belongs in an optional interface, or in a value that all of them read."""
    tree_by_module = dict(modules("launcher"))
    offered = {method.name for _, method in methods(tree_by_module["launcher.backend.model"], of="Protocol")}
    implementing = [f"launcher.backend.{backend}.backend" for backend in BACKENDS] + ["launcher.runs.supervised_runs"]
    ignored_by_method = [
        (f"{module}:{name}.{method.name}", [*unread(method)])
        for module in implementing
        for name, method in methods(tree_by_module[module])
        if method.name in offered
    ]
    assert len(ignored_by_method) > 30
    assert [place for place, ignored in ignored_by_method if ignored] == []


def test_code_that_backends_share_imports_none_of_them() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules("launcher/runs")
        for name in imports(tree)
        if within(name, "launcher.backend")
    ]
    assert wrong == []


def test_every_module_has_a_docstring() -> None:
    silent = [str(path.relative_to(ROOT)) for path, tree in trees("*.py") if not (ast.get_docstring(tree) or "").strip()]
    assert silent == []


def test_no_docstring_or_comment_begins_with_a_question_word() -> None:
    """A noun says what a thing is, a verb what a function does. A comment may begin with a condition: Where there is none, the next one counts."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    words = r"(?:What|Whatever|Who|Whoever|Whom|Whose)\b"
    wrong = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path, tree in trees("*.py")
        for node in statements(tree)
        if isinstance(node, documented) and (text := ast.get_docstring(node)) and re.match(rf"{words}|Where\b", text)
    ] + [
        f"{path.relative_to(ROOT)}: {match.group().strip()}"
        for path in tracked("*.py")
        for match in re.finditer(rf"(?<!\S)# (?:{words}.*|Where [^,\n]*$)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert wrong == []


def test_modules_that_docstrings_name_exist() -> None:
    """A name by itself is that of a file in any folder; Python's own modules do not count."""
    existing = {str(path.relative_to(ROOT)) for path in tracked("*.py")}
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees("launcher/*.py", "trainer/*.py")
        for node in statements(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for name in re.findall(r"(?<![\w/.-])[a-z_0-9/]+\.py\b", ast.get_docstring(node) or "")
        if not any(f"/{one}".endswith(f"/{name}") for one in existing) and name.removesuffix(".py") not in sys.stdlib_module_names
    ]
    assert missing == []


def test_modules_stay_small() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in tracked("*.py")}
    long = {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES}
    assert long == {}


def test_few_short_modules_have_a_single_importer() -> None:
    """A helper with one importer belongs in the module that imports it. Imports by tests do not count: a test is no reason for a module."""
    importers: dict[str, set[str]] = {}
    for package in ("launcher", "trainer", "benchmarks", "examples"):
        for module, tree in modules(package):
            for name in set(imports(tree)) - {module}:
                importers.setdefault(name, set()).add(module)
    lengths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): len(path.read_text(encoding="utf-8").splitlines())
        for path in tracked("launcher/*.py", "trainer/*.py")
        if not path.stem.startswith("__")
    }
    fragments = [name for name, lines in lengths.items() if lines <= FRAGMENT_LINES and len(importers.get(name, ())) == 1]
    assert len(fragments) <= MOST_FRAGMENTS, fragments


# Names that several packages have on purpose.
COMMON_NAMES = {"backend", "errors", "models", *BACKENDS}
# A verb's module has the name of the verb, and so has often the module of what it shows.
VERBS_OF = {"diff", "doctor", "plan", "render", "schema", "stacks", "status", "tensorboard"}
# Pairs of which one is in launcher/runs or launcher/backend.
SHARED_NAMES = {"engine"}


def test_no_two_modules_of_one_name_mean_different_things() -> None:
    modules_by_name: dict[str, list[str]] = {}
    for package in ("launcher", "trainer"):
        for module, _ in modules(package):
            modules_by_name.setdefault(module.rpartition(".")[2], []).append(module)
    allowed = COMMON_NAMES | VERBS_OF | SHARED_NAMES | {"__main__"}
    assert {name: paths for name, paths in modules_by_name.items() if len(paths) > 1 and name not in allowed} == {}
    assert sorted(name for name in VERBS_OF if f"launcher.cli.{name}" not in modules_by_name[name]) == []


# Written so that this file does not match.
FORBIDDEN = {
    "a package registry's host": r"pypi\.(?:org)|python[h]osted\.org|registry\.(?:npmjs)|proxy\.(?:golang)|download\.(?:pytorch)|repo1\.(?:maven)",
    "a path of one machine": r"(?<![\w.])/(?:work|root)/\w",
    "unfinished work": r"\b(?:TO)DO\b|\bFIX(?:ME)\b|\bXX(?:X)\b|raise Not(?:ImplementedError)",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    wrong = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{path.relative_to(ROOT)}: {match.group()}" for match in re.finditer(FORBIDDEN[what], text)]
    assert wrong == []


def test_only_ci_refers_to_the_directory_beside_the_repository() -> None:
    referring = {str(path.relative_to(ROOT)) for path in tracked() if re.search(rb"\.\./sha(?:red)", path.read_bytes())}
    assert referring <= {".ci/run"}


def test_every_place_with_a_version_has_the_same() -> None:
    """docs/releasing.md lists them; the images' tags in compose/ and k8s/ are generated from the launcher's."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    built = set(re.findall(r"^ARG VERSION=(\S+)", (ROOT / "images" / "Dockerfile").read_text(), re.MULTILINE))
    assert built == {version, launcher.__version__, trainer.__version__}
