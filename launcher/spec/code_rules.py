"""Rules on the user's code: the files and names that a spec refers to exist. The code is parsed, never imported.

A name that parsing cannot see is not an error. It may come from a star import, `exec`, `__getattr__`, an extension module, or a package that is
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

from launcher.errors import nearest
from launcher.spec.problems import Finding, Path, all_of, shown
from launcher.spec.role_programs import images_of, roles_of
from launcher.spec.rule_context import RuleContext, entries_of, resolved
from trainer.strategies import STRATEGIES

# Names by which a module may define others dynamically.
_DYNAMIC = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"})
_DATA_NAMES = ("train_data", "eval_data")
_WORKLOAD: Path = ("train", "workload")
_PROGRAM_ARGUMENT = "cluster"  # the first argument of a program with manual placement, see trainer/workloads/module_forms.py
_MAX_LISTED = 8


@dataclass
class Module:
    """The names that a module defines at its top level. With `has_dynamic_names` it may have other names, too."""

    names: set[str] = field(default_factory=set)
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)  # its functions and classes
    compiled: set[str] = field(default_factory=set)  # names whose `compile` is called
    has_dynamic_names: bool = False

    @property
    def public(self) -> list[str]:
        """The functions and classes that a spec may name."""
        return [name for name in self.definitions if not name.startswith("_") and name not in _DATA_NAMES]


def parse(source: bytes, file: str) -> Module:
    """Return the names in a module. Raises SyntaxError, ValueError if it is not text, RecursionError or MemoryError if it is nested too deeply."""
    module = Module()
    with warnings.catch_warnings():  # on its string escapes; Python may be told to turn warnings into errors
        warnings.simplefilter("ignore")
        tree = ast.parse(source, file)
    _collect(tree.body, module)
    return module


def _collect(body: list[ast.stmt], module: Module) -> None:
    pending: list[tuple[ast.AST, bool]] = [(statement, True) for statement in body]
    while pending:
        node, outermost = pending.pop()
        if outermost:
            _bind(node, module)
        if isinstance(node, ast.Global):
            module.names.update(node.names)
        if (isinstance(node, ast.Name) and node.id in _DYNAMIC) or (isinstance(node, ast.Attribute) and node.attr == "modules"):
            module.has_dynamic_names = True
        inner = outermost and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
        pending += [(child, inner) for child in ast.iter_child_nodes(node)]


def _bind(node: ast.AST, module: Module) -> None:
    """Add the names that a node binds at the top level, in branches too."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            module.names.add(node.name)
            module.definitions.setdefault(node.name, []).append(node)
            module.has_dynamic_names |= node.name in _DYNAMIC
        case ast.Import():
            module.names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        case ast.ImportFrom():
            module.has_dynamic_names |= any(alias.name == "*" for alias in node.names)
            module.names.update(alias.asname or alias.name for alias in node.names)
        case ast.Name(ctx=ast.Store()):
            module.names.add(node.id)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            module.names.add(name)
        case ast.Call(func=ast.Attribute(attr="compile", value=ast.Name(id=name))):
            module.compiled.add(name)


def workload_is_defined(context: RuleContext) -> Iterator[Finding]:
    """The module of the workload is in `code`, and defines the workload's name, and its data if that form of workload needs it."""
    spec = context.spec
    directory = _code_directory(context)
    if directory is None or spec.train is None:
        return
    dotted, _, name = spec.train.workload.partition(":")
    if not name or not all(part.isidentifier() for part in dotted.split(".")):
        return  # rules.workload_exists has a finding for it
    path, missing = _find_module(directory, dotted.split("."))
    if missing is not None and not _may_be_installed(context, dotted):
        yield _no_such_module(directory, spec.train.workload, missing)
    if path is not None:
        yield from _name_is_defined(context, path, path.relative_to(directory), f"{dotted}:{name.partition('.')[0]}")


def code_is_set(context: RuleContext) -> Iterator[Finding]:
    """If the workload's module is in the spec's directory, `code` is set, which puts it on the tasks' path."""
    spec = context.spec
    if spec.code is not None or spec.train is None or ":" not in spec.train.workload:
        return
    dotted = spec.train.workload.partition(":")[0]
    top = dotted.partition(".")[0]
    entries = {path.name: path for path in entries_of(context.directory(("code",)))}
    module = entries.get(f"{top}.py") or next((path for path in (entries.get(top),) if path and _is_package(path)), None)
    if module is not None and not _may_be_installed(context, dotted):
        message = f"{module.name} is in the spec's directory, but not on the tasks' path"
        yield Finding(_WORKLOAD, message, "`code`, the directory with your code", "add `code: .`")


def _name_is_defined(context: RuleContext, path: FilePath, file: FilePath, workload: str) -> Iterator[Finding]:
    """Check the module at `path`; messages call it `file`."""
    dotted, _, name = workload.partition(":")
    try:
        module = parse(path.read_bytes(), str(file))
    except SyntaxError as error:
        if not images_of(context.spec):  # another image may have another Python
            line = "" if error.lineno is None else f", line {error.lineno},"
            message = f"{file}{line} is not valid Python: {error.msg}"
            yield Finding(_WORKLOAD, message, "a module that can be imported", f"correct {file}")
        return
    except (OSError, ValueError, RecursionError, MemoryError):
        return
    if module.has_dynamic_names:
        return
    if name not in module.names:
        yield _no_such_name(module, dotted, name, file)
    elif STRATEGIES[context.spec.strategy].trains:
        yield from _data_is_defined(module, name, file)


def _no_such_name(module: Module, dotted: str, name: str, file: FilePath) -> Finding:
    known = [*module.public, *sorted(module.names - set(module.definitions))]
    meant = nearest(name, known)
    expected = f"one of {', '.join(module.public[:_MAX_LISTED])}" if module.public else "a name that it defines"
    remedy = f"write {dotted}:{meant}" if meant else f"define it in {file}, or use a name that {file} defines"
    return Finding(_WORKLOAD, f"{file} has no {shown(name)}", expected, remedy)


def _data_is_defined(module: Module, name: str, file: FilePath) -> Iterator[Finding]:
    if not _needs_data(module, name):
        return
    missing = [name for name in _DATA_NAMES if name not in module.names]
    if missing:
        message = f"{file} has no {' and no '.join(missing)}, which {shown(name)} is trained with"
        remedy = f"define {all_of(missing)} in it: functions that return (inputs, targets); see docs/workloads.md"
        yield Finding(_WORKLOAD, message, f"{all_of(_DATA_NAMES)} beside {name}", remedy)


def _needs_data(module: Module, name: str) -> bool:
    """Return whether a name is certainly a function or a compiled model: their data comes from their module."""
    definitions = module.definitions.get(name, [])
    if not definitions:
        return name in module.compiled
    for node in definitions:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            return False
        arguments = [*node.args.posonlyargs, *node.args.args]
        if arguments and arguments[0].arg == _PROGRAM_ARGUMENT:
            return False
    return True


def program_files_exist(context: RuleContext) -> Iterator[Finding]:
    """The file of `python FILE` is in `code`, the working directory of commands without a `working_dir`."""
    directory, spec = _code_directory(context), context.spec
    if directory is None:
        return
    roles = {name: role for name, role in roles_of(spec).items() if context.is_valid(("roles", name))}
    if spec.command and any(role.command is None and role.working_dir is None for role in roles.values()):
        yield from _program_file_exists(context, directory, ("command",), spec.command)
    for name, role in roles.items():
        if role.command and role.working_dir is None:
            yield from _program_file_exists(context, directory, ("roles", name, "command"), role.command)


def _program_file_exists(context: RuleContext, directory: FilePath, path: Path, command: list[str]) -> Iterator[Finding]:
    if not FilePath(command[0]).name.startswith("python"):
        return
    position, word = next(
        ((index, word) for index, word in enumerate(command[1:], 1) if not word.startswith("-") or word in {"-c", "-m"}), (0, "")
    )
    if not word.endswith(".py") or FilePath(word).is_absolute() or os.path.lexists(directory / word):
        return
    files = sorted(str(path.relative_to(directory)) for path in directory.glob("*.py"))
    meant = nearest(word, files)
    expected = f"a file in {context.spec.code}" + (f", such as {', '.join(files[:_MAX_LISTED])}" if files else "")
    message = f"there is no {shown(word)} in {context.spec.code}, where the command starts"
    yield Finding((*path, position), message, expected, f"write {meant}" if meant else "name an existing file, or correct `code`")


def _code_directory(context: RuleContext) -> FilePath | None:
    """Return the directory of the user's code; None if it is missing, for which rules.code_exists has a finding."""
    if context.spec.code is None:
        return None
    try:
        directory = resolved(context.directory(("code",)), context.spec.code)
        return directory if directory.is_dir() else None
    except (OSError, ValueError):
        return None


def _find_module(directory: FilePath, parts: list[str]) -> tuple[FilePath | None, int | None]:
    """Return the file of a module below a directory, or None without a source, and the index of the first missing part of its name, or None."""
    package_dir = directory
    for position, part in enumerate(parts):
        candidates = {path.name: path for path in entries_of(package_dir) if path.name.partition(".")[0] == part}
        package = candidates.get(part)
        if package is not None and package.is_dir():
            package_dir = package
        elif f"{part}.py" in candidates and position == len(parts) - 1:
            return candidates[f"{part}.py"], None
        elif any(name.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) for name in candidates):
            return None, None
        else:
            return None, position
    init = package_dir / "__init__.py"
    return (init if init.is_file() else None), None


def _no_such_module(directory: FilePath, workload: str, position: int) -> Finding:
    dotted, _, name = workload.partition(":")
    parts = dotted.split(".")
    entries = entries_of(directory.joinpath(*parts[:position]))
    modules = sorted({path.stem for path in entries if path.suffix == ".py" or _is_package(path)} - {"__init__"})
    meant = nearest(parts[position], modules)
    below = "/".join(parts[: position + 1])
    message = f"there is no module {'.'.join(parts[: position + 1])}: neither {below}.py nor {below}/ is in {directory}"
    expected = f"a module there, such as {', '.join(modules[:_MAX_LISTED])}" if modules else "a module there"
    remedy = "correct `code`, or name an existing module"
    if meant:
        remedy = f"write {'.'.join([*parts[:position], meant, *parts[position + 1 :]])}:{name}"
    return Finding(_WORKLOAD, message, expected, remedy)


def _is_package(path: FilePath) -> bool:
    return path.is_dir() and path.name.isidentifier() and any(path.glob("*.py"))


def _may_be_installed(context: RuleContext, dotted: str) -> bool:
    """Return whether a module that is not in `code` may be elsewhere on the tasks' path: in an image, in PYTHONPATH, or installed here."""
    variables = (context.spec.env, *(role.env for role in roles_of(context.spec).values()))
    if images_of(context.spec) or any("PYTHONPATH" in env for env in variables):
        return True
    try:
        return importlib.util.find_spec(dotted.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
