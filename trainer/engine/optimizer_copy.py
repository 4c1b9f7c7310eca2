"""Copies optimizers by their configuration, but not their schedule: Keras would need its class to be serializable."""

import keras


def copied(optimizer: keras.optimizers.Optimizer, **changes: object) -> keras.optimizers.Optimizer:
    """Return an optimizer, not built, with the same arguments but for `changes`; a schedule or function as learning rate is shared, since it has no state."""
    attributes = vars(optimizer)
    rate = attributes.get("_learning_rate")
    if rate is None or isinstance(rate, keras.Variable):
        return type(optimizer).from_config({**optimizer.get_config(), **changes})
    attributes["_learning_rate"] = None  # get_config would serialize it; bypasses Keras, which tracks attributes
    try:
        config = optimizer.get_config()
    finally:
        attributes["_learning_rate"] = rate
    return type(optimizer).from_config({**config, "learning_rate": rate, **changes})
