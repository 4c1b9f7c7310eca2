"""A worker's session of TensorFlow 1 that begins at the same time as the others'."""

from typing import Any

_RETRY_INTERVAL = 1  # seconds between two looks whether the first worker has initialized the variables
_STOP_TIMEOUT = 2  # seconds for a thread of a synchronous first worker, which waits for gradients that never come


def session(tf: Any, target: str, scaffold: Any, config: Any, index: int, hooks: Any = ()) -> Any:
    """Return worker `index`'s session, a context manager, on the server at `target`.

    `MonitoredTrainingSession` has the others try once, and again after 30 seconds, when most of a short run is over.
    """
    v1 = tf.compat.v1

    class Creator(v1.train.SessionCreator):  # type: ignore[name-defined]
        def create_session(self) -> Any:
            scaffold.finalize()
            manager = v1.train.SessionManager(
                local_init_op=scaffold.local_init_op,
                ready_op=scaffold.ready_op,
                ready_for_local_init_op=scaffold.ready_for_local_init_op,
                graph=v1.get_default_graph(),
                recovery_wait_secs=_RETRY_INTERVAL,
            )
            return manager.wait_for_session(target, config=config)

    creator = v1.train.ChiefSessionCreator(scaffold, target, config) if index == 0 else Creator()
    return v1.train.MonitoredSession(session_creator=creator, hooks=hooks, stop_grace_period_secs=_STOP_TIMEOUT)
