"""What every example is run with where it runs as a user runs it, in containers and on a cluster, and what it has to come to."""

from typing import Any

from tests.integration.test_examples import ACCURACY, COMMANDS, DIGITS, OWN_PROGRAM, PROGRAMS, TRAINED

# Where an example is made for more time than there is here, it is set as in the tests of local runs.
SETTINGS: dict[str, tuple[str, ...]] = {
    **{name: changes for name, (changes, _) in TRAINED.items()},
    **dict.fromkeys(("mnist-ps", "mnist-evaluator", *COMMANDS, *PROGRAMS), ()),
}


def assert_reached(name: str, status: dict[str, Any], logs: str) -> None:
    """Check that a run has come to what its example is there for: its metrics, or what a program says of itself."""
    if name in COMMANDS:
        said = OWN_PROGRAM.findall(logs)
        assert len(said) == 1, logs[-3000:]  # the chief alone
        assert float(said[0]) >= ACCURACY
        return
    expected = PROGRAMS[name][0] if name in PROGRAMS else TRAINED.get(name, ((), DIGITS))[1]
    metrics = status["metrics"]
    for metric, (low, high) in expected.items():
        assert low <= metrics[metric] <= high, metrics
