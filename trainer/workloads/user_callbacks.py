"""The Keras callbacks that a user's module gives, as `callbacks`: a list, or a function that returns one."""

from typing import TYPE_CHECKING, Any

from trainer.workloads.errors import WorkloadError
from trainer.workloads.user_call import CallArguments, call, where

if TYPE_CHECKING:
    import keras

NAME = "callbacks"


class UserCallbacks:
    """Makes the callbacks, once for each call; none where there is no source."""

    def __init__(self, source: Any | None, given: CallArguments) -> None:
        self._source, self._given = source, given

    def __call__(self) -> "list[keras.callbacks.Callback]":
        """Return them.

        Raises:
            WorkloadError: what is there is no list of callbacks.
        """
        import keras

        source = self._source
        if source is None:
            return []
        made = call(source, self._given) if callable(source) and not isinstance(source, keras.callbacks.Callback | type) else source
        found = [made] if isinstance(made, keras.callbacks.Callback) else made
        name = f"train.workload {self._given.workload}: {where(source) if callable(source) else NAME}"
        if not isinstance(found, list | tuple):
            raise WorkloadError(f"{name} gives {type(made).__name__}; expected a list of Keras callbacks, or a function that returns one")
        for index, one in enumerate(found):
            if not isinstance(one, keras.callbacks.Callback):
                kind = f"the class {one.__name__}" if isinstance(one, type) else type(one).__name__
                raise WorkloadError(
                    f"{name}: number {index} of its list is {kind}; expected an object of a class of keras.callbacks.Callback"
                )
        return list(found)
