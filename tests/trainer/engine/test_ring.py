"""What two tasks exchange, as far as one process can tell; whole runs of several are in tests/integration."""

import pytest
import tensorflow as tf

from trainer.engine.ring import Ring


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_gradients_of_any_kind_can_be_sent_in_any_form(size: int, wire: str) -> None:
    ring = Ring(1, 0, wire)
    ring.size = size  # the operations are made, not run: that takes a task for each

    @tf.function(autograph=False)
    def exchange(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        means, _ = ring.mean_gradients(gradients)
        return means

    specs = [tf.TensorSpec([3, 2], tf.float32), tf.TensorSpec([4], tf.float16), tf.TensorSpec([], tf.float32)]
    graph = exchange.get_concrete_function(specs)
    assert [(t.shape, t.dtype) for t in graph.structured_outputs] == [(s.shape, s.dtype) for s in specs]
    sent = {op.inputs[0].dtype.size for op in graph.graph.get_operations() if op.type.startswith("Collective")}
    assert sent == ({2} if wire == "bfloat16" else {2, 4})
