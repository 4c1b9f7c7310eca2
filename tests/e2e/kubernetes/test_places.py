"""Two runs of the same name in two namespaces: each verb acts on the intended one."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, remaining_objects

pytestmark = pytest.mark.kubernetes


def test_runs_of_the_same_name_in_two_namespaces_are_two_runs(
    launcher: Launcher, other_namespace: Namespace, image: str, tmp_path: Path
) -> None:
    places = (launcher, dataclasses.replace(launcher, namespace=other_namespace))
    file = tmp_path / "twin.yaml"
    for place, word in zip(places, ("first", "second"), strict=True):
        file.write_text(
            f"version: 1\nname: twin\nimage: {image}\nstorage: {{}}\ncommand: [python, -c, {json.dumps(f'print({word!r}, flush=True)')}]\n"
            "kubernetes: {tensorboard: false}\n"
        )
        assert "twin succeeded" in place("up", str(file), timeout=TRAINING_TIMEOUT)
    for place in places:  # deletes the pods: the logs are then cached output, each only of its own run
        place("down", "twin")
    for place, word, other_word in zip(places, ("first", "second"), ("second", "first"), strict=True):
        log = place("logs", "twin", "--raw")
        assert word in log
        assert other_word not in log
        assert place.namespace.name in place.status("twin")["run_dir"]

    # By default, the namespace of the last start: also for `up` and `diff`, which then see the same spec.
    anywhere = dataclasses.replace(places[1], names_namespace=False)
    assert other_namespace.name in anywhere.status("twin")["run_dir"]
    assert "is complete" in anywhere("up", str(file))
    assert f"in {other_namespace.name}" in anywhere("diff", str(file), code=1)

    # Without a run's name, the run in the kubeconfig's namespace, though its name was started elsewhere since.
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubectl("config", "view", "--raw", "--minify").stdout)
    kubectl("config", "set-context", "--current", f"--namespace={launcher.namespace.name}", f"--kubeconfig={kubeconfig}")
    at_first = dataclasses.replace(anywhere, env={**launcher.env, "KUBECONFIG": str(kubeconfig)})
    assert "first" in at_first("logs", "--raw")
    assert "twin (succeeded): removed its data" in at_first("down", "--finished", "--delete-data", "--yes")
    assert "second" in places[1]("logs", "twin", "--raw")
    assert remaining_objects(launcher.namespace) == []

    # If nothing is left in the namespace of the last start, the namespace of the start before.
    places[0]("up", str(file), timeout=TRAINING_TIMEOUT)
    places[0]("down", "twin", "--delete-data", "--yes")
    assert other_namespace.name in anywhere.status("twin")["run_dir"]
    anywhere("down", "twin", "--delete-data", "--yes")
    assert remaining_objects(other_namespace) == []
