"""The same name in two namespaces: two runs, and each verb sees the one that is meant."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.e2e.kubernetes.cluster import Namespace, kubectl
from tests.e2e.kubernetes.launching import TRAINING_TIMEOUT, Launcher, left

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1440)]


def test_runs_of_the_same_name_in_two_namespaces_are_two_runs(
    launcher: Launcher, other_namespace: Namespace, image: str, tmp_path: Path
) -> None:
    places = (launcher, dataclasses.replace(launcher, namespace=other_namespace))
    file = tmp_path / "twin.yaml"
    for one, word in zip(places, ("first", "second"), strict=True):
        file.write_text(
            f"version: 1\nname: twin\nimage: {image}\nstorage: {{}}\ncommand: [python, -c, {json.dumps(f'print({word!r}, flush=True)')}]\n"
            "kubernetes: {tensorboard: false}\n"
        )
        assert "twin succeeded" in one("up", str(file), timeout=TRAINING_TIMEOUT)
    for one in places:  # the pods are gone; what was kept is of this run alone
        one("down", "twin")
    for one, word, not_said in zip(places, ("first", "second"), ("second", "first"), strict=True):
        log = one("logs", "twin", "--raw")
        assert word in log
        assert not_said not in log
        assert one.namespace.name in one.status("twin")["run_dir"]

    # The place where it was started last: also for `up` and `diff`, which then see the same spec.
    anywhere = dataclasses.replace(places[1], names_namespace=False)
    assert other_namespace.name in anywhere.status("twin")["run_dir"]
    assert "is complete" in anywhere("up", str(file))
    assert f"in {other_namespace.name}" in anywhere("diff", str(file), code=1)

    # Without a name, that of the namespace of the kubeconfig, though one of its name was started elsewhere since.
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(kubectl("config", "view", "--raw", "--minify").stdout)
    kubectl("config", "set-context", "--current", f"--namespace={launcher.namespace.name}", f"--kubeconfig={kubeconfig}")
    at_first = dataclasses.replace(anywhere, env={**launcher.env, "KUBECONFIG": str(kubeconfig)})
    assert "first" in at_first("logs", "--raw")
    assert "twin (succeeded): removed its data" in at_first("down", "--finished", "--delete-data", "--yes")
    assert "second" in places[1]("logs", "twin", "--raw")
    assert left(launcher.namespace) == []

    # Where nothing is left in the place of the last start, the one before.
    places[0]("up", str(file), timeout=TRAINING_TIMEOUT)
    places[0]("down", "twin", "--delete-data", "--yes")
    assert other_namespace.name in anywhere.status("twin")["run_dir"]
    anywhere("down", "twin", "--delete-data", "--yes")
    assert left(other_namespace) == []
