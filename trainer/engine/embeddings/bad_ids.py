"""Translates TensorFlow's errors of look-ups, in training steps and evaluations: an id outside of a table, or a lost server."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from trainer.engine.embeddings.server_rows import OUTSIDE
from trainer.engine.parameter_server.worker_pool import translate_peer_errors
from trainer.engine.train_config import TrainConfig
from trainer.workloads.errors import WorkloadError


@contextmanager
def translate_bad_ids(config: TrainConfig) -> Iterator[None]:
    """Turn TensorFlow's error about an id outside of a table into a WorkloadError that names layer, rows and id; of lost servers into PeerLostError."""
    try:
        with translate_peer_errors():
            yield
    except tf.errors.InvalidArgumentError as error:
        match = re.search(re.escape(OUTSIDE) + r"(the layer .*?)\] \[(-?\d+)\]", str(error.message), re.DOTALL)
        if not match:
            raise
        raise WorkloadError(
            f"train.workload {config.train.workload}: {match[1]} {match[2]}; ids are from 0 to the rows less one. Hash them into that range, "
            "or make the layer larger"
        ) from error
