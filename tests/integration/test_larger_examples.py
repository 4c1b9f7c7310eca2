"""The examples with pictures and clicks, each to its accuracy: half the time of all examples."""

from pathlib import Path

import pytest

from tests.integration.example_runs import Bounds, assert_trained, up

pytestmark = [pytest.mark.slow, pytest.mark.takes_minutes]

# Of each: what is set, and the bounds of each metric at the end.
PICTURES = {"accuracy": (0.9, 1.0)}
CLICK_BOUNDS = {"auc": (0.8, 0.9), "loss": (0.3, 0.6)}
# At a higher rate training sometimes falls back for some steps; at which depends on the last bits of this machine's sums.
RATE = "train.params.learning_rate=0.03"
SMALL = ("train.steps=700", "train.batch_size=16", "train.params.filters=16", RATE, "train.report_every_steps=100")
SHARED = (*SMALL, "train.batch_size=8")  # of each of two replicas
CLICKS = ("train.steps=500", "train.params.rows=200", "train.embeddings.min_rows=200", "train.params.eval_examples=2000")
MORE_CLICKS = (*CLICKS, "train.params.eval_examples=20000")
TRAINED: dict[str, tuple[tuple[str, ...], Bounds]] = {
    "cifar10-single": (SMALL, PICTURES),
    "cifar10-mirrored": (SHARED, PICTURES),
    "cifar10-multiworker": (SHARED, PICTURES),
    # At the rate above, training on servers sometimes falls back to its beginning if it takes more steps; stale gradients need
    # more steps, the more so the busier the machine. Beside other runs, one of three with batches of 16 ended at 87 %, and none of
    # five with batches of 8 below 98 %.
    "cifar10-ps": ((*SHARED, "train.steps=1500", "train.evaluate.every_steps=1500", "train.params.learning_rate=0.02"), PICTURES),
    "click-through-ps": (MORE_CLICKS, CLICK_BOUNDS),
    "click-through-single": (MORE_CLICKS, CLICK_BOUNDS),
    # AUC 0.825 to 0.827 after 150 steps.
    "click-through-multiworker": ((*CLICKS, "train.steps=150"), CLICK_BOUNDS),
    "click-through-sync": ((*CLICKS, "train.steps=150"), CLICK_BOUNDS),
}
COMPARED = ("click-through-single", "click-through-ps")


@pytest.mark.parametrize("name", [name for name in TRAINED if name not in COMPARED])
def test_each_example_reaches_its_accuracy(name: str, tmp_path: Path) -> None:
    changes, expected = TRAINED[name]
    assert_trained(up(name, tmp_path, changes), expected, changes)


def test_asynchronous_servers_learn_clicks_as_well_as_one_process_from_as_many_examples(tmp_path: Path) -> None:
    """Of eight seeds, four of them beside some forty busy processes, the AUC differed by 0.0003 in the median, and by 0.0012 at most."""
    auc = {}
    for name in COMPARED:
        changes, expected = TRAINED[name]
        example = up(name, tmp_path, changes)
        assert_trained(example, expected, changes)
        auc[name] = example.summary["metrics"]["auc"]
    one_process, servers = auc.values()
    assert abs(servers - one_process) < 0.005, auc
