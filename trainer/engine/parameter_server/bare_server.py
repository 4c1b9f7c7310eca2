"""A TensorFlow server without TensorFlow's Python: up in half a second rather than in two or more.

A ps or worker of parameter_server or manual runs no Python of its own: the chief sends it graphs. It needs
TensorFlow's shared libraries, with every kernel, and the class that starts the server. `import tensorflow` would
bring Keras, compat.v1 and the rest, 2,000 modules, at four times the memory.
"""

import importlib.util
import sys
import types
from typing import Any


def server_class() -> Any:
    """Return `tf.distribute.Server`, imported without the rest of TensorFlow if nothing has imported that yet."""
    if "tensorflow" not in sys.modules:
        _install_stub("tensorflow")
    from tensorflow.python.training.server_lib import Server

    return Server


def _install_stub(name: str) -> None:
    """Put an empty package in the place of `name`, so that importing a submodule does not run its `__init__`."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        message = f"{name} is not installed here; install what requirements/trainer.txt lists"
        raise ModuleNotFoundError(message, name=name)
    package = types.ModuleType(name)
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package
