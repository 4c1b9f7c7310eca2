"""The parent of a user's program as one file, for images with Python but without our trainer. Pure, except that it reads the trainer's sources.

It consists of the modules that `trainer -- COMMAND` imports; they need only Python 3.8 and the standard library. The file has them without
comments. Lines keep their numbers, so that a traceback shows the right ones.
"""

import ast
import base64
import functools
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import trainer
from launcher import __version__

# Modules that `trainer` imports only without a command: it then trains.
_TRAINING_MODULES = ("trainer.configuration", "trainer.engine", "trainer.uninterruptible")

_HEAD = f'''"""The parent of a program that reads TF_CONFIG: checks TF_CONFIG, starts the program, and starts it again. Of tf-launcher {__version__}.

python3 parent.py [--check] [--health] -- COMMAND

It needs Python 3.8 or later and nothing else. It is the trainer's parent process (docs/programs.md says what it does): the modules of the
package `trainer` that it consists of follow.
"""

import sys

if sys.version_info < (3, 8):
    sys.stderr.write(
        "trainer: python3 is Python %d.%d in this image; the parent of a command needs 3.8 or later; "
        "take an image with one, or write supervise: false in the spec\\n" % sys.version_info[:2]
    )
    sys.exit(2)

SOURCES = {{}}  # the name of a module -> the line where its text begins, and the text
'''

_TAIL = '''
import importlib.util


class Modules:
    """Imports the modules above. Their code is compiled so that its lines are those of this file."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in SOURCES:
            return importlib.util.spec_from_loader(name, Modules, is_package=name == "trainer")

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        line, text = SOURCES[module.__name__]
        exec(compile("\\n" * (line - 1) + text, globals().get("__file__", "parent.py"), "exec"), module.__dict__)

    @staticmethod
    def get_source(name):
        return SOURCES[name][1]


sys.meta_path.insert(0, Modules)

from trainer.__main__ import main

sys.exit(main())
'''

# A comment, alone or after code, whose strings end in its line: the size of a variable is limited.
_COMMENTS = re.compile(r"""^ *#.*$|^((?:[^"'#\n]|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')*?)  # .*$""", re.MULTILINE)
VARIABLE = "TRAINER_PARENT"  # the packed text of the file, for containers into which no file can be put


@functools.cache
def text() -> str:
    """Return the file's text."""
    content = _HEAD
    for name in modules():
        source = without_comments(_path(name).read_text(encoding="utf-8"))
        assert "'''" not in source, name  # noqa: S101 - a test checks it; docstrings use the other quotes
        content += f"\nSOURCES[{name!r}] = ({content.count(chr(10)) + 2}, r'''{source}''')\n"
    return content + _TAIL


def without_comments(source: str) -> str:
    """Return Python source without comments, with as many lines."""
    return _COMMENTS.sub(r"\1", source)


@functools.cache
def packed() -> str:
    """Return the value of VARIABLE, at most 128 KiB long: the file's text, compressed by zlib, in base64."""
    return base64.b64encode(zlib.compress(text().encode(), 9)).decode()


@functools.cache
def modules() -> tuple[str, ...]:
    """Return the sorted names of the modules that the parent of a command may import."""
    imported_names = {"trainer", "trainer.__main__"}
    pending = ["trainer.__main__"]
    for name in pending:
        for imported in _imports(ast.parse(_path(name).read_text(encoding="utf-8"))):
            if imported not in imported_names and not imported.startswith(_TRAINING_MODULES) and _path(imported).is_file():
                imported_names.add(imported)
                pending.append(imported)
    return tuple(sorted(imported_names))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the names below `trainer` that a module may import, also inside functions, but not those only for annotations."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("trainer."))
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.partition(".")[0] == "trainer":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _imports(node)


def _path(name: str) -> Path:
    """Return the path that a module's file would have; that of the package is its __init__.py."""
    return Path(str(trainer.__file__)).parent.joinpath(*(name.split(".")[1:] or ["__init__"])).with_suffix(".py")
