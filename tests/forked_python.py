"""Forks Python programs in place of starting them, so that installed packages are imported already.

A process that has called `patch_subprocess` forks itself if it would start a program of this repository, and so do the processes that it forks.
A forked process is the child of the one that starts it, and has the environment, directory, descriptors, session and signals that it is given.
It imports the code of this repository itself, except for the modules of `draw_pictures`. It costs a twentieth of a second, where importing
TensorFlow takes four seconds of a core.

A forked process skips Python's own start. Other programs, and programs with variables that Python or TensorFlow read at their import,
are started normally: see `_fork_exec`.
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
# Prefixes of variables that Python and packages read at their import, except for those of the next table.
_READ_AT_IMPORT = ("PYTHON", "TF_", "KERAS_", "XLA_", "CUDA_", "OMP_", "OPENBLAS_", "LD_")
_READ_LATER = {
    *("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_GRPC_REUSE_PORT"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),  # no GPU is used here, and NumPy has one thread
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS"),  # `_become` reads them
}
_WARNINGS = ("", "error", "default")

_ROOM = 1 << 15  # bytes for the variables of a forked process
_ARGUMENT_COUNT = 23  # of Python 3.11 to 3.13's subprocess._fork_exec
_WRAPPER = parent_death.wrapped([])  # the first arguments of the command by which a trainer starts a program
# Users' programs that other tests start normally, or for which other tests start something similar (docs/testing.md).
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
_original: Callable[..., int] = subprocess._fork_exec  # type: ignore[attr-defined]  # Popen starts every process by it
_INSTALLED = tuple({str(Path(sysconfig.get_path(name))) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_drawn: dict[str, types.ModuleType] = {}  # modules of `draw_pictures`, by name
_keep_alive: list[object] = []  # objects of the program that was forked: their finalizers would close descriptors that are in use again


def patch_subprocess(environment: Mapping[str, str]) -> None:
    """Fork from now on; `environment` is the one in which packages were imported."""
    save_start_state(environment)
    subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]


def save_start_state(environment: Mapping[str, str]) -> None:
    """Save the state that `become` and `run` restore."""
    own = {str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    _start.environment = dict(environment)
    _start.path = [entry for entry in sys.path[1:] if str(Path(entry).resolve()) not in own]
    _start.finders, _start.filters = list(sys.meta_path), list(warnings.filters)


def draw_pictures() -> None:
    """Draw the synthetic digits and patterns once for all forked processes: they are the same in every task, and each set costs a second of a core."""
    from trainer.workloads import cifar10_data, digits, mnist_data, patterns

    for module, data in (digits, mnist_data), (patterns, cifar10_data):
        module.draw = functools.cache(module.draw)  # type: ignore[attr-defined]
        data.load("synthetic")
        _drawn[module.__name__] = module


class _Drawn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `draw_pictures` when a program imports them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del target
        ours = name in _drawn and str(ROOT / "trainer" / "workloads") in (path or ())
        return importlib.util.spec_from_loader(name, self) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _drawn[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: `draw_pictures` has executed it."""


def _fork_exec(*arguments: Any) -> int:
    if len(arguments) != _ARGUMENT_COUNT:
        return _original(*arguments)
    command, _, close_fds, keep, cwd, variables, *fds, restore_signals, new_session, group, gid, gids, uid, umask, before, _ = arguments
    argv = [os.fsdecode(word) for word in command]
    environment = os.environ if variables is None else dict(os.fsdecode(entry).split("=", 1) for entry in variables)
    plain = close_fds and restore_signals and before is None and (gid, gids, uid, umask) == (None, None, None, -1)
    wrapped = cwd is None and _is_wrapped_program(argv, environment)
    argv = [sys.executable, *argv[len(_WRAPPER) + 1 :]] if wrapped else argv
    if not plain or not (wrapped or _is_ours(argv)) or not _can_fork(argv, environment) or (cwd is not None and not Path(cwd).is_dir()):
        return _original(*arguments)
    if pid := os.fork():
        return pid
    try:
        _detach(keep, fds, new_session=new_session, group=group)
        become(argv, environment, Path(cwd or "."))
        if wrapped:
            parent_death.die_with_parent()
        os.close(fds[-1])  # so the parent learns that the program runs
        run(argv)
    except BaseException:  # noqa: BLE001 - the code of the forked process must not continue in this one, whatever the error
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(126)


def _is_ours(argv: Sequence[str]) -> bool:
    """Return whether a command runs a module of this repository, or a file of its tests."""
    program = next((word for word in argv[1:] if word not in ("-P", "-m")), "")
    return program.split(".")[0] in ("launcher", "trainer") if "-m" in argv[1:3] else Path(program).is_relative_to(ROOT / "tests")


def _is_wrapped_program(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a trainer starts one of _USER_PROGRAMS, in its directory, as `python FILE`."""
    if list(argv[: len(_WRAPPER)]) != _WRAPPER or len(argv) < len(_WRAPPER) + 2:
        return False
    python = shutil.which(argv[len(_WRAPPER)], path=environment.get("PATH"))
    is_this = python is not None and Path(python).parent == Path(sys.executable).parent and Path(python).name.startswith("python")
    return is_this and str(Path(argv[len(_WRAPPER) + 1]).resolve()) in _USER_PROGRAMS


def _can_fork(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a forked process can run a command of this Python in an environment."""
    if argv[0] != sys.executable or environment.get("PYTHONWARNINGS", "") not in _WARNINGS:
        return False
    if sum(len(os.fsencode(f"{name}={value}")) + 1 for name, value in environment.items()) >= _ROOM:
        return False
    names = {*environment, *_start.environment}
    tensorflow = sys.modules.get("tensorflow.python.eager.context")
    if tensorflow and tensorflow._context is not None:  # its threads run, and a fork would lack them
        return False
    read = {name for name in names if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER}
    return all(environment.get(name, _start.environment.get(name)) == _start.environment.get(name) for name in read)


def _detach(keep: Sequence[int], fds: Sequence[int], *, new_session: bool, group: int) -> None:
    """Set the descriptors, session and signals as in a new process, and drop the finalizers and exit handlers of the parent."""
    stdin, _, _, stdout, _, stderr, _, error_pipe = fds
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.disable()
    high = [fd if fd == -1 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (stdin, stdout, stderr)]  # closed below
    for standard, fd in enumerate(high):
        if fd != -1:
            os.dup2(fd, standard)
    for fd in keep:
        os.set_inheritable(fd, fd != error_pipe)
    open_fds = [2, *sorted(fd for fd in keep if fd > 2), os.sysconf("SC_OPEN_MAX")]
    for low, next_fd in itertools.pairwise(open_fds):
        os.closerange(low + 1, next_fd)
    if new_session:
        os.setsid()
    if group >= 0:
        os.setpgid(0, group)
    _keep_alive.extend((subprocess._active, dict(weakref.finalize._registry)))  # type: ignore[attr-defined]
    subprocess._active = []  # type: ignore[attr-defined]
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    atexit._clear()
    gc.freeze()


def become(argv: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
    """Set the environment, directory, input and output as in a Python that the command has just started."""
    os.chdir(cwd)
    os.environ.clear()  # before their memory is overwritten, from which C reads them
    _write_proc_files(argv, environment)
    os.environ.update(environment)
    time.tzset()
    for name in ("stdin", "stdout", "stderr"):
        _keep_alive.extend((getattr(sys, name), getattr(sys, f"__{name}__")))
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8", write_through=unbuffered)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    faulthandler.register(signal.SIGUSR2, file=sys.stderr, all_threads=True)  # for `forked.Process.show`
    sys.excepthook, threading.excepthook, sys.unraisablehook = sys.__excepthook__, threading.__excepthook__, sys.__unraisablehook__
    warnings.filters[:] = _start.filters  # type: ignore[index]
    if chosen := environment.get("PYTHONWARNINGS"):
        warnings.simplefilter(chosen)  # type: ignore[arg-type]  # one of _WARNINGS
    sys.orig_argv = [*argv]
    tempfile.tempdir = None  # TMPDIR may have changed
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # as at its import


def run(argv: Sequence[str]) -> NoReturn:
    """Run the module or file as Python does, and exit as Python does."""
    safe, options = "-P" in argv[1:3], sum(word in ("-P", "-m") for word in argv[1:3])
    program, *arguments = argv[1 + options :]
    module = "-m" in argv[1:3]
    first = str(Path.cwd() if module else Path(program).resolve().parent)
    sys.argv = ["-m" if module else program, *arguments]
    ours = [name for name, loaded in list(sys.modules.items()) if name in ("__main__", "sitecustomize") or not is_installed(loaded)]
    _keep_alive.extend(sys.modules.pop(name) for name in ours)
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

    run_and_exit(work)


def run_and_exit(work: Callable[[], object]) -> NoReturn:
    """Call `work`, and exit as Python does after it."""
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


def is_installed(module: types.ModuleType) -> bool:
    """Return whether a module is Python's own, or an installed package's."""
    paths = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    return all(not path or path.startswith(_INSTALLED) for path in paths)


def padded(command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return a command and its environment, padded so that `_write_proc_files` can overwrite them."""
    return [*command, " " * 1024], {**environment, "ROOM_FOR_ANOTHER_ENVIRONMENT": " " * _ROOM}


def _write_proc_files(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write the command and the environment into /proc/PID/cmdline and environ (proc_pid_stat(5), fields 48 to 51)."""
    if sys.platform != "linux":
        return
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    starts = [int(field) for field in fields[45:49]]
    for (begin, end), texts in ((starts[:2], argv), (starts[2:], [f"{name}={value}" for name, value in environment.items()])):
        content = b"".join(os.fsencode(text) + b"\0" for text in texts)
        assert len(content) < end - begin, f"no room for {len(content)} bytes in {end - begin}: {texts}"
        ctypes.memmove(begin, content.ljust(end - begin, b"\0"), end - begin)
