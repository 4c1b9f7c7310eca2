"""The Keras callbacks of a user's module, `callbacks`: a list, or a function that returns one."""

from typing import TYPE_CHECKING, Any

from trainer.workloads.errors import WorkloadError
from trainer.workloads.user_call import CallArguments, call, described

if TYPE_CHECKING:
    import keras

CALLBACKS = "callbacks"


class UserCallbacks:
    """Creates the callbacks in each call; none without a source."""

    def __init__(self, source: Any | None, arguments: CallArguments) -> None:
        self._source, self._arguments = source, arguments

    def __call__(self) -> "list[keras.callbacks.Callback]":
        """Return the callbacks.

        Raises:
            WorkloadError: the source does not give a list of callbacks.
        """
        import keras

        source = self._source
        if source is None:
            return []
        value = call(source, self._arguments) if callable(source) and not isinstance(source, keras.callbacks.Callback | type) else source
        callbacks = [value] if isinstance(value, keras.callbacks.Callback) else value
        name = f"train.workload {self._arguments.workload}: {described(source) if callable(source) else CALLBACKS}"
        if not isinstance(callbacks, list | tuple):
            raise WorkloadError(f"{name} gives {type(value).__name__}; expected a list of Keras callbacks, or a function that returns one")
        for index, callback in enumerate(callbacks):
            if not isinstance(callback, keras.callbacks.Callback):
                kind = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
                raise WorkloadError(
                    f"{name}: number {index} of its list is {kind}; expected an object of a class of keras.callbacks.Callback"
                )
        return list(callbacks)
