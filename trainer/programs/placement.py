"""placement: an operation on each of two tasks with the same number, and the sum of the results on the chief."""

import tensorflow as tf

from trainer.programs.cluster import Cluster
from trainer.workloads.catalog import PlacementParams


def placement(cluster: Cluster, params: PlacementParams, _seed: int) -> dict[str, float]:
    """Return y1 = x + 300, y2 = x - 66 and y = y1 + y2, which is 238 for x = 2.

    y1 is computed on the first task and y2 on the second, or both on the only one; y on the chief.
    """
    first, second = cluster.tasks[0], cluster.tasks[1 % len(cluster.tasks)]
    x = tf.constant(params.x)
    with tf.device(first.device), tf.name_scope("y1"):
        y1 = x + 300
    with tf.device(second.device), tf.name_scope("y2"):
        y2 = x - 66
    with tf.device(cluster.chief.device), tf.name_scope("y"):
        y = y1 + y2
    return {"y1": float(y1), "y2": float(y2), "y": float(y)}
