"""How many steps one call into TensorFlow runs: few enough to see progress, many enough to cost nothing."""

_CALL_SECONDS = 0.2  # a call this long hides its own cost (about 1 ms) and still shows progress
_MOST = 1000
_GROWTH = 8  # the first calls are slow for other reasons (tracing, caches): grow in steps


def next_steps(steps: int, seconds: float) -> int:
    """Return the steps of the next call, after one of `steps` steps took `seconds`."""
    fitting = int(steps * _CALL_SECONDS / max(seconds, 1e-6))
    return max(1, min(fitting, steps * _GROWTH, _MOST))


def to_boundary(step: int, wanted: int, last: int, *every: int | None) -> int:
    """Return how many of `wanted` steps to run from `step` so that no multiple of `every`, nor `last`, is passed."""
    stops = [last, *(step - step % e + e for e in every if e)]
    return max(1, min(wanted, *(s - step for s in stops)))
