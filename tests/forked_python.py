"""Python programs in processes that are forked, not started from nothing: what they import of others is there already.

A process that has called `take_over` forks where it would start a program of this repository, and so do those that it has forked. Each is
a process of its own, the child of the one that starts it, with the environment, directory, descriptors, session and signals it is given.
It imports the code of this repository itself, but for what draws pictures (`draw_pictures`); it costs a twentieth of a second where importing
TensorFlow takes four of a core.

It lacks Python's own start. Anything else that is started, or with variables that Python or TensorFlow read when they are
imported, is started from nothing: `_fork_exec` says which.
"""

import atexit
import builtins
import ctypes
import faulthandler
import fcntl
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import itertools
import os
import runpy
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from trainer import parent_death

ROOT = Path(__file__).resolve().parents[1]
# Variables, by how their names begin, that a program reads as it is imported, but for the next ones.
_READ_AT_IMPORT = ("PYTHON", "TF_", "KERAS_", "XLA_", "CUDA_", "OMP_", "OPENBLAS_", "LD_")
_READ_LATER = {
    *("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_GRPC_REUSE_PORT"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),  # no GPU is used here, and NumPy's own threads are one
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS"),  # `_become` reads them
}
_WARNINGS = ("", "error", "default")

_ROOM = 1 << 15  # bytes for the variables of a process that is forked
_ARGUMENTS = 23  # of Python 3.11 to 3.13's subprocess._fork_exec
_WRAPPER = parent_death.wrapped([])  # by which a trainer starts a program
# Users' programs that also start from nothing elsewhere, or of which something similar does (docs/testing.md).
_USER_PROGRAMS = [
    *(str(ROOT / "examples" / name) for name in ("custom-command/train.py", "custom-command/parameter_server.py", "keras-fit/train.py")),
    *(str(ROOT / "tests" / "programs" / name) for name in ("between_graph.py", "custom_loop.py")),
]


@dataclass
class _Start:
    """The state of this process before any program ran in it."""

    environment: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    finders: list[Any] = field(default_factory=list)
    filters: list[Any] = field(default_factory=list)


_start = _Start()
_real: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]  # the one place where Popen makes a process
_stays = tuple({str(Path(sysconfig.get_path(name))) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_drawn: dict[str, types.ModuleType] = {}  # modules that `draw_pictures` has made, by name
_kept: list[object] = []  # of programs that this process has been: descriptors that they held are others' now, and must not be closed


def take_over(environment: Mapping[str, str]) -> None:
    """Fork from now on; `environment` is what was set for the imports that have been made."""
    note_start(environment)
    subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]


def note_start(environment: Mapping[str, str]) -> None:
    """Note the state to which `become` and `run` return."""
    own = {str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    _start.environment = dict(environment)
    _start.path = [entry for entry in sys.path[1:] if str(Path(entry).resolve()) not in own]
    _start.finders, _start.filters = list(sys.meta_path), list(warnings.filters)


def draw_pictures() -> None:
    """Draw the synthetic digits and patterns, which are the same in every task and cost each a second of a core, for all that are forked."""
    from trainer.workloads import cifar10_data, digits, mnist_data, patterns

    for module, data in (digits, mnist_data), (patterns, cifar10_data):
        module.draw = functools.cache(module.draw)  # type: ignore[attr-defined]
        data.load("synthetic")
        _drawn[module.__name__] = module


class _Drawn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the modules that `draw_pictures` has made to who imports those of this repository."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del target
        ours = name in _drawn and str(ROOT / "trainer" / "workloads") in (path or ())
        return importlib.util.spec_from_loader(name, self) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _drawn[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: it was executed when it was made."""


def _fork_exec(*arguments: Any) -> int:
    if len(arguments) != _ARGUMENTS:
        return _real(*arguments)
    command, _, close_fds, keep, cwd, variables, *fds, restore_signals, new_session, group, gid, gids, uid, umask, before, _ = arguments
    words = [os.fsdecode(word) for word in command]
    given = os.environ if variables is None else dict(os.fsdecode(entry).split("=", 1) for entry in variables)
    plain = close_fds and restore_signals and before is None and (gid, gids, uid, umask) == (None, None, None, -1)
    wrapped = cwd is None and _is_wrapped_program(words, given)
    words = [sys.executable, *words[len(_WRAPPER) + 1 :]] if wrapped else words
    if not plain or not (wrapped or _is_ours(words)) or not _by_fork(words, given) or (cwd is not None and not Path(cwd).is_dir()):
        return _real(*arguments)
    if pid := os.fork():
        return pid
    try:
        _detach(keep, fds, new_session=new_session, group=group)
        become(words, given, Path(cwd or "."))
        if wrapped:
            parent_death.die_with_parent()
        os.close(fds[-1])  # anyone who started us knows that we run
        run(words)
    except BaseException:  # noqa: BLE001 - whatever it is: nothing of the process we come from may go on in this one
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(126)


def _is_ours(words: Sequence[str]) -> bool:
    """Return whether a command runs a module of this repository, or a file of its tests."""
    program = next((word for word in words[1:] if word not in ("-P", "-m")), "")
    return program.split(".")[0] in ("launcher", "trainer") if "-m" in words[1:3] else Path(program).is_relative_to(ROOT / "tests")


def _is_wrapped_program(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a trainer starts one of _USER_PROGRAMS, in its directory, as `python FILE`."""
    if list(words[: len(_WRAPPER)]) != _WRAPPER or len(words) < len(_WRAPPER) + 2:
        return False
    python = shutil.which(words[len(_WRAPPER)], path=environment.get("PATH"))
    is_this = python is not None and Path(python).parent == Path(sys.executable).parent and Path(python).name.startswith("python")
    return is_this and str(Path(words[len(_WRAPPER) + 1]).resolve()) in _USER_PROGRAMS


def _by_fork(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command of this Python can run in an environment that this process can still get."""
    if words[0] != sys.executable or environment.get("PYTHONWARNINGS", "") not in _WARNINGS:
        return False
    if sum(len(os.fsencode(f"{name}={value}")) + 1 for name, value in environment.items()) >= _ROOM:
        return False
    told = {*environment, *_start.environment}
    tensorflow = sys.modules.get("tensorflow.python.eager.context")
    if tensorflow and tensorflow._context is not None:  # its threads run, of which a fork would have none
        return False
    read = {name for name in told if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER}
    return all(environment.get(name, _start.environment.get(name)) == _start.environment.get(name) for name in read)


def _detach(keep: Sequence[int], fds: Sequence[int], *, new_session: bool, group: int) -> None:
    """Have the descriptors, session and signals of a process that was started, and nothing that its parent would still do."""
    stdin, _, _, stdout, _, stderr, _, told = fds
    for heard in signal.valid_signals():
        if callable(signal.getsignal(heard)):
            signal.signal(heard, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.disable()
    high = [fd if fd == -1 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (stdin, stdout, stderr)]  # closed below
    for number, fd in enumerate(high):
        if fd != -1:
            os.dup2(fd, number)
    for fd in keep:
        os.set_inheritable(fd, fd != told)
    open_ones = [2, *sorted(fd for fd in keep if fd > 2), os.sysconf("SC_OPEN_MAX")]
    for low, next_one in itertools.pairwise(open_ones):
        os.closerange(low + 1, next_one)
    if new_session:
        os.setsid()
    if group >= 0:
        os.setpgid(0, group)
    _kept.extend((subprocess._active, dict(weakref.finalize._registry)))  # type: ignore[attr-defined]
    subprocess._active = []  # type: ignore[attr-defined]
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit._clear()
    gc.freeze()


def become(words: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
    """Have the environment, directory, input, output and modules of a Python that was just started by the command."""
    os.chdir(cwd)
    os.environ.clear()  # before their places are written over: C finds none by its name then
    _show(words, environment)
    os.environ.update(environment)
    time.tzset()
    for name in ("stdin", "stdout", "stderr"):
        _kept.extend((getattr(sys, name), getattr(sys, f"__{name}__")))
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8", write_through=unbuffered)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)  # `forked.run` asks where one that does not end is
    sys.excepthook, threading.excepthook, sys.unraisablehook = sys.__excepthook__, threading.__excepthook__, sys.__unraisablehook__
    warnings.filters[:] = _start.filters  # type: ignore[index]
    if chosen := environment.get("PYTHONWARNINGS"):
        warnings.simplefilter(chosen)  # type: ignore[arg-type]  # one of _WARNINGS
    sys.orig_argv = [*words]
    tempfile.tempdir = None  # of TMPDIR, which may be another one
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # as at its import


def run(words: Sequence[str]) -> NoReturn:
    """Run the module or file as Python does, and end as Python ends."""
    safe, options = "-P" in words[1:3], sum(word in ("-P", "-m") for word in words[1:3])
    program, *arguments = words[1 + options :]
    module = "-m" in words[1:3]
    first = str(Path.cwd() if module else Path(program).resolve().parent)
    sys.argv = ["-m" if module else program, *arguments]
    ours = [name for name, loaded in list(sys.modules.items()) if name in ("__main__", "sitecustomize") or not of_others(loaded)]
    _kept.extend(sys.modules.pop(name) for name in ours)
    sys.path[:] = [
        *([] if safe else [first]),
        *(entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry),
        *_start.path,
    ]
    sys.meta_path[:] = [_Drawn(), *_start.finders]
    importlib.invalidate_caches()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=program)

    def work() -> None:
        if importlib.util.find_spec("sitecustomize"):
            importlib.import_module("sitecustomize")
        if module:
            runpy._run_module_as_main(program)  # type: ignore[attr-defined]  # what `python -m` calls
        else:
            exec(compile(Path(program).read_bytes(), program, "exec"), main.__dict__)  # noqa: S102 - as `python FILE` does

    end_by(work)


def end_by(work: Callable[[], object]) -> NoReturn:
    """Do the work, and end as Python ends then."""
    code: object = 0
    try:
        work()
    except SystemExit as end:
        code = end.code
    except BaseException as error:  # noqa: BLE001 - as Python does
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if not (code is None or isinstance(code, int)):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    os._exit((code or 0) & 0xFF)


def of_others(module: types.ModuleType) -> bool:
    """Return whether a module is Python's own, or an installed package's."""
    places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return all(not place or place.startswith(_stays) for place in places)


def padded(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return a command and its environment with room for `_show` to write others in their places."""
    return [*command, " " * 1024], {**environment, "ROOM_FOR_ANOTHER_ENVIRONMENT": " " * _ROOM}


def _show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have /proc/PID/cmdline and environ tell what this process was given, as long as there is room (proc_pid_stat(5), fields 48 to 51)."""
    if sys.platform != "linux":
        return
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    starts = [int(field) for field in fields[45:49]]
    for (begin, end), texts in ((starts[:2], words), (starts[2:], [f"{name}={value}" for name, value in environment.items()])):
        told = b"".join(os.fsencode(text) + b"\0" for text in texts)
        assert len(told) < end - begin, f"no room for {len(told)} bytes in {end - begin}: {texts}"
        ctypes.memmove(begin, told.ljust(end - begin, b"\0"), end - begin)
