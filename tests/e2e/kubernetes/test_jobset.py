"""The API server takes what is rendered for JobSet, by the definition that JobSet installs; the launcher does not fight with it.

No controller of JobSet runs here: nothing becomes of the JobSets.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli.main import run
from tests.e2e.kubernetes.cluster import EXAMPLES, ROOT, Namespace, kubectl, until
from tests.e2e.kubernetes.launching import Launcher
from tests.e2e.kubernetes.test_accepted import CLUSTER, OPTIONS, accepted

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

DEFINITION = "jobsets.jobset.x-k8s.io"
# The oldest that docs/kubernetes.md names, and a newer one.
VERSIONS = ("v0.6.0", "v0.8.1")


@pytest.fixture(scope="module", params=VERSIONS)
def jobset(request: pytest.FixtureRequest, cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Have the cluster know JobSets of a version; skip where it knows some already, or the version cannot be had."""
    assert cluster
    if kubectl("get", "crd", DEFINITION, check=False).returncode == 0:
        pytest.skip("the cluster has JobSet already")
    file = definition(request.param, tmp_path_factory.mktemp("go"))
    kubectl("create", "-f", str(file))
    try:
        until(known, 30, "the cluster to know JobSets")
        yield request.param
    finally:
        kubectl("delete", "crd", DEFINITION, "--timeout=60s", timeout=90)


def known() -> bool:
    """Tell whether the API server takes JobSets by now."""
    status = json.loads(kubectl("get", "crd", DEFINITION, "-o", "json").stdout).get("status", {})
    return any(one["type"] == "Established" and one["status"] == "True" for one in status.get("conditions") or ())


def definition(version: str, directory: Path) -> Path:
    """Return the file with JobSet's definition, out of its Go module; skip where there is no Go to fetch that."""
    if shutil.which("go") is None:
        pytest.skip("there is no go here, which fetches JobSet's definition")
    command = ["go", "mod", "download", "-json", f"sigs.k8s.io/jobset@{version}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"JobSet {version} cannot be fetched: {(done.stdout + done.stderr).strip()[-200:]}")
    return Path(json.loads(done.stdout)["Dir"], "config", "components", "crd", "bases", "jobset.x-k8s.io_jobsets.yaml")


def rendered(spec: Path, name: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the objects of a spec, under a name."""
    assert run(["render", str(spec), "--to", "jobset", "--set", f"name={name}"]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def jobs(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the Jobs that JobSet's controller makes of a JobSet."""
    found = []
    for one in made["spec"]["replicatedJobs"]:
        name = f"{made['metadata']['name']}-{one['name']}-0"
        spec = one["template"]["spec"]
        spec["template"]["spec"]["subdomain"] = made["spec"]["network"]["subdomain"]
        found.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": {**one["template"]["metadata"], "name": name}, "spec": spec})
    return found


def test_every_example_and_option_is_accepted_and_so_are_the_jobs(
    jobset: str, namespace: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobset in VERSIONS
    specs = {f"example-{name}": ROOT / "examples" / f"{name}.yaml" for name in EXAMPLES}
    for option, text in OPTIONS.items():
        specs[f"option-{option}"] = tmp_path / f"{option}.yaml"
        specs[f"option-{option}"].write_text(
            f"version: 1\nname: digits\n{CLUSTER}\ntrain: {{workload: mnist_mlp}}\nlimits: {{deadline: 1h}}\nkubernetes:{text}\n"
        )
    objects = [one for name, spec in specs.items() for one in rendered(spec, name, capsys)]
    sets = [one for one in objects if one["kind"] == "JobSet"]
    assert len(sets) == len(specs)
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    told = accepted(namespace, "-f", str(file)).splitlines()
    assert len(told) == len(objects)
    assert sum(line.startswith("jobset.jobset.x-k8s.io/") for line in told) == len(specs)
    file.write_text(yaml.safe_dump_all(job for one in sets for job in jobs(one)))
    assert len(accepted(namespace, "-f", str(file)).splitlines()) == sum(len(one["spec"]["replicatedJobs"]) for one in sets)


def test_what_a_jobset_has_made_is_told_but_not_deleted(
    jobset: str, namespace: Namespace, launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobset in VERSIONS
    (made,) = [one for one in rendered(ROOT / "examples" / "mnist-ps.yaml", "foreign", capsys) if one["kind"] == "JobSet"]
    namespace.kubectl("apply", "-f", "-", text=json.dumps(made))
    owner = json.loads(namespace.kubectl("get", "jobset", "foreign", "-o", "json"))
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        "name": "foreign",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    chief = jobs(made)[0]
    chief["metadata"]["ownerReferences"] = [reference]
    chief["spec"]["suspend"] = True
    namespace.kubectl("apply", "-f", "-", text=json.dumps(chief))
    assert [task["name"] for task in launcher.status("foreign")["tasks"]] == ["chief"]
    # As its controller tells of a Job that it makes again, and of one that it does not.
    failed = {"type": "Failed", "status": "True", "reason": "Tried", "message": "no more", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    target = {**failed, "type": "FailureTarget"}
    status = {"conditions": [target, failed], "startTime": "2026-01-01T00:00:00Z"}
    namespace.kubectl("patch", "job", "foreign-chief-0", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    told = launcher.status("foreign")
    assert (told["state"], told["reason"]) == ("restarting", "jobset/foreign starts it again, or ends it: chief: no more")
    launcher("wait", "foreign", "--timeout", "3s", code=124)
    over = {"conditions": [{**failed, "reason": "FailedJobs", "message": "jobset failed"}]}
    namespace.kubectl("patch", "jobset", "foreign", "--subresource=status", "--type=merge", "-p", json.dumps({"status": over}))
    launcher("wait", "foreign", code=1)
    said = launcher("down", "foreign", code=2)
    assert "those of jobset/foreign, which makes them again" in said
    assert f"kubectl delete jobset/foreign -n {namespace.name}" in said
    assert namespace.kubectl("get", "jobs", "-l", "app.kubernetes.io/instance=foreign", "-o", "name").split() == [
        "job.batch/foreign-chief-0"
    ]
    namespace.kubectl("delete", "jobset", "foreign", "--timeout=60s", timeout=90)
