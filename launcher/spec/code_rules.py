"""Rules on the user's code: the files and names that a spec names are there. The code is parsed, never imported.

A name that parsing cannot see is no error: one of a star import, of `exec`, of `__getattr__`, of an extension module, or of a package that is
installed where the tasks run.
"""

import ast
import importlib.machinery
import importlib.util
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from launcher.spec.problems import Finding, Path, all_of, nearest, shown
from launcher.spec.role_programs import images_of, roles_of
from launcher.spec.rule_context import RuleContext, resolved
from trainer.strategies import STRATEGIES

# Names by which a module may make others in ways that are not to be seen.
_HIDES = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"})
_DATA = ("train_data", "eval_data")
_WORKLOAD: Path = ("train", "workload")
_PROGRAM = "cluster"  # the first argument of a program with manual placement, see trainer/workloads/module_forms.py
_LISTED = 8


@dataclass
class Module:
    """The names that a module defines at its top level. `hides` says that it may have other names too."""

    names: set[str] = field(default_factory=set)
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)  # its functions and classes
    compiled: set[str] = field(default_factory=set)  # names of which `compile` is called
    hides: bool = False

    @property
    def public(self) -> list[str]:
        """The functions and classes that a spec may name."""
        return [name for name in self.definitions if not name.startswith("_") and name not in _DATA]


def parse(source: bytes, file: str) -> Module:
    """Return what a module defines. Raises SyntaxError, ValueError for what is no text, RecursionError or MemoryError for what is too deep."""
    module = Module()
    with warnings.catch_warnings():  # of its strings: they are not errors, even where Python makes errors of warnings
        warnings.simplefilter("ignore")
        tree = ast.parse(source, file)
    _collect(tree.body, module)
    return module


def _collect(body: list[ast.stmt], module: Module) -> None:
    pending: list[tuple[ast.AST, bool]] = [(one, True) for one in body]
    while pending:
        node, outermost = pending.pop()
        if outermost:
            _bind(node, module)
        if isinstance(node, ast.Global):
            module.names.update(node.names)
        if (isinstance(node, ast.Name) and node.id in _HIDES) or (isinstance(node, ast.Attribute) and node.attr == "modules"):
            module.hides = True
        inner = outermost and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
        pending += [(child, inner) for child in ast.iter_child_nodes(node)]


def _bind(node: ast.AST, module: Module) -> None:
    """Note the names that a node binds at the top level, in branches too."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            module.names.add(node.name)
            module.definitions.setdefault(node.name, []).append(node)
            module.hides |= node.name in _HIDES
        case ast.Import():
            module.names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        case ast.ImportFrom():
            module.hides |= any(alias.name == "*" for alias in node.names)
            module.names.update(alias.asname or alias.name for alias in node.names)
        case ast.Name(ctx=ast.Store()):
            module.names.add(node.id)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            module.names.add(name)
        case ast.Call(func=ast.Attribute(attr="compile", value=ast.Name(id=name))):
            module.compiled.add(name)


def workload_is_there(subject: RuleContext) -> Iterator[Finding]:
    """The module of the workload is in `code`, with the name that is wanted, and with its data where that form needs it."""
    spec = subject.spec
    directory = _code(subject)
    if directory is None or spec.train is None:
        return
    dotted, _, wanted = spec.train.workload.partition(":")
    if not wanted or not all(part.isidentifier() for part in dotted.split(".")):
        return  # another rule says what a workload is
    path, missing = _find(directory, dotted.split("."))
    if missing is not None and not _may_be_installed(subject, dotted):
        yield _no_such_module(directory, spec.train.workload, missing)
    if path is not None:
        yield from _name_is_there(subject, path, path.relative_to(directory), f"{dotted}:{wanted.partition('.')[0]}")


def code_is_given(subject: RuleContext) -> Iterator[Finding]:
    """A module beside the spec is on the tasks' path: that is what `code` is for."""
    spec = subject.spec
    if spec.code is not None or spec.train is None or ":" not in spec.train.workload:
        return
    dotted = spec.train.workload.partition(":")[0]
    top = dotted.partition(".")[0]
    there = {path.name: path for path in _entries(subject.directory(("code",)))}
    found = there.get(f"{top}.py") or next((path for path in (there.get(top),) if path and _is_package(path)), None)
    if found is not None and not _may_be_installed(subject, dotted):
        message = f"{found.name} is beside the spec, and not on the tasks' path"
        yield Finding(_WORKLOAD, message, "`code`, the directory with your code", "add `code: .`")


def _name_is_there(subject: RuleContext, path: FilePath, file: FilePath, workload: str) -> Iterator[Finding]:
    """Examine the module in the file at `path`, which messages call `file`."""
    dotted, _, name = workload.partition(":")
    try:
        module = parse(path.read_bytes(), str(file))
    except SyntaxError as error:
        if not images_of(subject.spec):  # another image may have another Python
            line = "" if error.lineno is None else f", line {error.lineno},"
            message = f"{file}{line} is no Python: {error.msg}"
            yield Finding(_WORKLOAD, message, "a module that can be imported", f"correct {file}")
        return
    except (OSError, ValueError, RecursionError, MemoryError):
        return
    if module.hides:
        return
    if name not in module.names:
        yield _no_such_name(module, dotted, name, file)
    elif STRATEGIES[subject.spec.strategy].trains:
        yield from _data_is_there(module, name, file)


def _no_such_name(module: Module, dotted: str, name: str, file: FilePath) -> Finding:
    known = [*module.public, *sorted(module.names - set(module.definitions))]
    meant = nearest(name, known)
    there = f"one of {', '.join(module.public[:_LISTED])}" if module.public else "a name that it defines"
    remedy = f"write {dotted}:{meant}" if meant else f"define it in {file}, or name what is there"
    return Finding(_WORKLOAD, f"{file} has no {shown(name)}", there, remedy)


def _data_is_there(module: Module, name: str, file: FilePath) -> Iterator[Finding]:
    if not _needs_data(module, name):
        return
    missing = [one for one in _DATA if one not in module.names]
    if missing:
        message = f"{file} has no {' and no '.join(missing)}, which {shown(name)} is trained with"
        remedy = f"define {all_of(missing)} in it: functions that return (inputs, targets); see docs/workloads.md"
        yield Finding(_WORKLOAD, message, f"{all_of(_DATA)} beside {name}", remedy)


def _needs_data(module: Module, name: str) -> bool:
    """Return whether a name is, for certain, a function or a compiled model, which takes its data from its module."""
    definitions = module.definitions.get(name, [])
    if not definitions:
        return name in module.compiled
    for node in definitions:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            return False
        arguments = [*node.args.posonlyargs, *node.args.args]
        if arguments and arguments[0].arg == _PROGRAM:
            return False
    return True


def programs_are_there(subject: RuleContext) -> Iterator[Finding]:
    """The file of `python FILE` is in `code`, where commands start that no role has start elsewhere."""
    directory, spec = _code(subject), subject.spec
    roles = {name: role for name, role in roles_of(spec).items() if subject.known(("roles", name))}
    if directory is not None and spec.command and any(role.command is None and role.working_dir is None for role in roles.values()):
        yield from _program_is_there(subject, directory, ("command",), spec.command)
    for name, role in roles.items():
        if directory is not None and role.command and role.working_dir is None:
            yield from _program_is_there(subject, directory, ("roles", name, "command"), role.command)


def _program_is_there(subject: RuleContext, directory: FilePath, path: Path, command: list[str]) -> Iterator[Finding]:
    if not FilePath(command[0]).name.startswith("python"):
        return
    position, word = next(
        ((index, word) for index, word in enumerate(command[1:], 1) if not word.startswith("-") or word in {"-c", "-m"}), (0, "")
    )
    if not word.endswith(".py") or FilePath(word).is_absolute() or os.path.lexists(directory / word):
        return
    there = sorted(str(path.relative_to(directory)) for path in directory.glob("*.py"))
    meant = nearest(word, there)
    expected = f"a file in {subject.spec.code}" + (f", such as {', '.join(there[:_LISTED])}" if there else "")
    message = f"there is no {shown(word)} in {subject.spec.code}, where the command starts"
    yield Finding((*path, position), message, expected, f"write {meant}" if meant else "name a file that is there, or correct `code`")


def _code(subject: RuleContext) -> FilePath | None:
    """Return the directory of the user's code, None where there is none: another rule says so."""
    if subject.spec.code is None:
        return None
    try:
        directory = resolved(subject.directory(("code",)), subject.spec.code)
        return directory if directory.is_dir() else None
    except (OSError, ValueError):
        return None


def _find(directory: FilePath, parts: list[str]) -> tuple[FilePath | None, int | None]:
    """Return the file of a module below a directory, None where it has no source, and the index of the part of its name that is not there."""
    package_dir = directory
    for position, part in enumerate(parts):
        found = {path.name: path for path in _entries(package_dir) if path.name.partition(".")[0] == part}
        package = found.get(part)
        if package is not None and package.is_dir():
            package_dir = package
        elif f"{part}.py" in found and position == len(parts) - 1:
            return found[f"{part}.py"], None
        elif any(name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) for name in found):
            return None, None
        else:
            return None, position
    init = package_dir / "__init__.py"
    return (init if init.is_file() else None), None


def _no_such_module(directory: FilePath, workload: str, position: int) -> Finding:
    dotted, _, name = workload.partition(":")
    parts = dotted.split(".")
    entries = _entries(directory.joinpath(*parts[:position]))
    there = sorted({path.stem for path in entries if path.suffix == ".py" or _is_package(path)} - {"__init__"})
    meant = nearest(parts[position], there)
    below = "/".join(parts[: position + 1])
    message = f"there is no module {'.'.join(parts[: position + 1])}: neither {below}.py nor {below}/ is in {directory}"
    expected = f"a module there, such as {', '.join(there[:_LISTED])}" if there else "a module there"
    remedy = "correct `code`, or name a module that is there"
    if meant:
        remedy = f"write {'.'.join([*parts[:position], meant, *parts[position + 1 :]])}:{name}"
    return Finding(_WORKLOAD, message, expected, remedy)


def _is_package(path: FilePath) -> bool:
    return path.is_dir() and path.name.isidentifier() and any(path.glob("*.py"))


def _entries(directory: FilePath) -> list[FilePath]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _may_be_installed(subject: RuleContext, dotted: str) -> bool:
    """Return whether a module that is not in `code` may be elsewhere on the tasks' path: in another image, in PYTHONPATH, or installed here."""
    variables = (subject.spec.env, *(role.env for role in roles_of(subject.spec).values()))
    if images_of(subject.spec) or any("PYTHONPATH" in env for env in variables):
        return True
    try:
        return importlib.util.find_spec(dotted.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
