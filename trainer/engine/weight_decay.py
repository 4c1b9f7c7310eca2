"""Copies an optimizer's exclusions from weight decay to its copy: they are not in its configuration."""

from collections.abc import Sequence

import keras

# Attributes that Keras's exclude_from_weight_decay sets: the ids of variables, and a pattern of their names.
_EXCLUDED = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")


def excludes(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether the optimizer's weights decay, some of them excluded."""
    return optimizer.weight_decay is not None and any(getattr(optimizer, name, None) for name in _EXCLUDED)


def applies(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Return whether the optimizer lets a variable decay."""
    return bool(optimizer.weight_decay) and optimizer._use_weight_decay(variable)  # noqa: SLF001


def keep_excluded(optimizer: keras.optimizers.Optimizer, copy: keras.optimizers.Optimizer) -> None:
    """Exclude from a copy's weight decay what the optimizer excludes. Both update the same variables."""
    for name in _EXCLUDED:
        if hasattr(optimizer, name):
            setattr(copy, name, getattr(optimizer, name))


def exclude_mirrors(
    optimizer: keras.optimizers.Optimizer,
    copy: keras.optimizers.Optimizer,
    variables: Sequence[keras.Variable],
    mirrors: Sequence[keras.Variable],
) -> None:
    """Exclude `mirrors[i]` from a copy's weight decay where the optimizer excludes `variables[i]`, before the copy is built."""
    if excludes(optimizer):
        pairs = zip(variables, mirrors, strict=True)
        copy.exclude_from_weight_decay(var_list=[mirror for own, mirror in pairs if not optimizer._use_weight_decay(own)])  # noqa: SLF001
