"""The API server accepts rendered JobSets by JobSet's own definition, and the launcher leaves the Jobs of a JobSet to its controller.

The controller runs only for the last tests: in the others no Jobs are created from JobSets.
"""

import contextlib
import copy
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli.main import run
from tests.e2e.kubernetes import controllers
from tests.e2e.kubernetes.cluster import EXAMPLES, ROOT, Namespace, kubectl, stand_in_spec, until
from tests.e2e.kubernetes.controllers import JOBSET, KUEUE, Build
from tests.e2e.kubernetes.launching import Launcher
from tests.e2e.kubernetes.nodes import node_tool
from tests.e2e.kubernetes.test_accepted import CLUSTER, OPTIONS, accepted

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes_minutes, pytest.mark.usefixtures("builds")]

SERVED = "strategy: parameter_server\nroles: {chief: {}, ps: {replicas: 1}, worker: {replicas: 2}}\nkubernetes: {tensorboard: false}\n"
QUEUES = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {{name: {namespace}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {{name: {namespace}}}
spec:
  namespaceSelector: {{}}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{{name: {namespace}, resources: [{{name: cpu, nominalQuota: 1}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {{name: team, namespace: {namespace}}}
spec: {{clusterQueue: {namespace}}}
"""
_BASES = "config/components/crd/bases"  # of the definitions
# The oldest that docs/kubernetes.md names, and the one whose controller runs here.
VERSIONS = ("v0.6.0", JOBSET.version)


@pytest.fixture(scope="module")
def builds(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[controllers.Controller], Build]]:
    """Build the controllers while other tests run; return a function that returns a build, or skips with the reason why there is none."""
    assert cluster
    started: dict[str, Build | str] = {}
    with contextlib.ExitStack() as stack:
        for controller in (JOBSET, KUEUE) if "KUBE_TESTBED" in os.environ else ():
            try:
                started[controller.name] = stack.enter_context(controllers.building(controller, tmp_path_factory.mktemp(controller.name)))
            except pytest.skip.Exception as skipped:  # the tests of the other version, which need no controller, may run all the same
                started[controller.name] = str(skipped)

        def build_of(controller: controllers.Controller) -> Build:
            node_tool()
            build = started.get(controller.name, "KUBE_TESTBED names no cluster of this machine")
            if isinstance(build, str):
                pytest.skip(build)
            return build

        yield build_of


@pytest.fixture(scope="module", params=VERSIONS)
def jobset(request: pytest.FixtureRequest, cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Install a version's definition of JobSets; skip if the cluster has one already, or the version cannot be fetched."""
    assert cluster
    source = controllers.source(JOBSET.module, request.param, tmp_path_factory.mktemp("go"))
    with controllers.installed_crds(source / _BASES / "jobset.x-k8s.io_jobsets.yaml"):
        yield request.param


def rendered(spec: Path, name: str) -> list[dict[str, Any]]:
    """Return the rendered objects of a spec, under a name."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert run(["render", str(spec), "--to", "jobset", "--set", f"name={name}"]) == 0
    return list(yaml.load_all(output.getvalue(), yaml.CSafeLoader))


def jobs(jobset: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the Jobs that JobSet's controller creates from a JobSet."""
    created = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        metadata = {**replicated["template"]["metadata"], "name": f"{jobset['metadata']['name']}-{replicated['name']}-0"}
        spec = copy.deepcopy(replicated["template"]["spec"])
        spec["template"]["spec"]["subdomain"] = jobset["spec"]["network"]["subdomain"]
        created.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    return created


@pytest.fixture(scope="module")
def rendered_objects(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the objects of every example and of specs with every option, rendered once for all versions."""
    directory = tmp_path_factory.mktemp("all")
    specs = {f"example-{name}": ROOT / "examples" / f"{name}.yaml" for name in EXAMPLES}
    for option, text in OPTIONS.items():
        specs[f"option-{option}"] = directory / f"{option}.yaml"
        specs[f"option-{option}"].write_text(
            f"version: 1\nname: digits\n{CLUSTER}\ntrain: {{workload: mnist_mlp}}\nlimits: {{deadline: 1h}}\nkubernetes:{text}\n"
        )
    objects = [one for name, spec in specs.items() for one in rendered(spec, name)]
    assert sum(one["kind"] == "JobSet" for one in objects) == len(specs)
    return objects


def test_every_example_and_option_and_its_jobs_are_accepted(
    jobset: str, rendered_objects: list[dict[str, Any]], namespace: Namespace, tmp_path: Path
) -> None:
    assert jobset in VERSIONS
    sets = [one for one in rendered_objects if one["kind"] == "JobSet"]
    file = tmp_path / "all.yaml"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered_objects}))
    lines = accepted(namespace, "-f", str(file)).splitlines()
    assert len(lines) == len(rendered_objects)
    assert sum(line.startswith("jobset.jobset.x-k8s.io/") for line in lines) == len(sets)
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [job for one in sets for job in jobs(one)]}))
    assert len(accepted(namespace, "-f", str(file)).splitlines()) == sum(len(one["spec"]["replicatedJobs"]) for one in sets)


def test_jobs_of_a_jobset_are_deleted_with_it_if_it_belongs_to_the_run(jobset: str, namespace: Namespace, launcher: Launcher) -> None:
    assert jobset in VERSIONS
    (manifest,) = [one for one in rendered(ROOT / "examples" / "mnist-ps.yaml", "foreign") if one["kind"] == "JobSet"]
    namespace.kubectl("apply", "-f", "-", text=json.dumps(manifest))
    owner = json.loads(namespace.kubectl("get", "jobset", "foreign", "-o", "json"))
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        "name": "foreign",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    chief = jobs(manifest)[0]
    chief["metadata"]["ownerReferences"] = [reference]
    chief["spec"]["suspend"] = True
    namespace.kubectl("apply", "-f", "-", text=json.dumps(chief))
    assert [task["name"] for task in launcher.status("foreign")["tasks"]] == ["chief"]
    # The status that its controller sets for a Job that it creates again, and for one that it does not.
    failed = {"type": "Failed", "status": "True", "reason": "Tried", "message": "no more", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    target = {**failed, "type": "FailureTarget"}
    status = {"conditions": [target, failed], "startTime": "2026-01-01T00:00:00Z"}
    namespace.kubectl("patch", "job", "foreign-chief-0", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    status_of_run = launcher.status("foreign")
    assert (status_of_run["state"], status_of_run["reason"]) == ("restarting", "jobset/foreign starts it again, or ends it: chief: no more")
    launcher("wait", "foreign", "--timeout", "3s", code=124)
    failed_jobset = {"conditions": [{**failed, "reason": "FailedJobs", "message": "jobset failed"}]}
    namespace.kubectl("patch", "jobset", "foreign", "--subresource=status", "--type=merge", "-p", json.dumps({"status": failed_jobset}))
    launcher("wait", "foreign", code=1)
    namespace.kubectl("label", "jobset", "foreign", "app.kubernetes.io/name-")  # as one that was not created for the run
    output = launcher("down", "foreign", code=2)
    assert "belong to jobset/foreign, which creates them again" in output
    assert f"kubectl delete jobset/foreign -n {namespace.name}" in output
    assert namespace.kubectl("get", "jobs", "-l", "app.kubernetes.io/instance=foreign", "-o", "name").split() == [
        "job.batch/foreign-chief-0"
    ]
    namespace.kubectl("label", "jobset", "foreign", "app.kubernetes.io/name=tf-launcher")
    launcher("down", "foreign")
    assert namespace.kubectl("get", "jobsets,jobs", "-l", "app.kubernetes.io/instance=foreign", "-o", "name") == ""


@pytest.fixture(scope="module")
def controlled(jobset: str, builds: Callable[[controllers.Controller], Build], namespace: Namespace) -> Iterator[Namespace]:
    """Run JobSet's controller; skip if it cannot be built, or KUBE_TESTBED names no cluster of this machine."""
    assert jobset == VERSIONS[-1]
    with controllers.running(builds(JOBSET), namespace.name):
        yield namespace


@pytest.fixture(scope="module")
def queue(controlled: Namespace, builds: Callable[[controllers.Controller], Build]) -> Iterator[str]:
    """Run Kueue, with a queue that has room for one run; return the queue's name."""
    build = builds(KUEUE)
    with controllers.installed_crds(*sorted((build.source / _BASES).glob("*.yaml"))), controllers.running(build, controlled.name):
        # Kueue's own webhooks for these objects are not registered.
        kubectl("create", "-f", "-", text=QUEUES.format(namespace=controlled.name))
        try:
            yield "team"
        finally:
            # While Kueue runs: a queue is deleted only when it admits nothing, and a failed test may leave a run that it admitted.
            controlled.kubectl("delete", "jobsets", "--all", "--timeout=60s")
            controlled.kubectl("delete", "workloads", "--all", "--timeout=60s")  # whose finalizers only Kueue removes
            kubectl("delete", "--ignore-not-found", "--timeout=30s", "-f", "-", text=QUEUES.format(namespace=controlled.name), timeout=60)


def apply(namespace: Namespace, name: str, spec: str, directory: Path) -> None:
    """Render a spec for JobSet and apply it with kubectl, as docs/kubernetes.md describes."""
    file = directory / "spec.yaml"
    file.write_text(f"version: 1\nname: {name}\n{spec}")
    namespace.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(rendered(file, name)))


def jobset_status(namespace: Namespace, name: str) -> dict[str, Any]:
    """Return the status of a JobSet."""
    status = json.loads(namespace.kubectl("get", "jobset", name, "-o", "json")).get("status", {})
    assert isinstance(status, dict)
    return status


def status_at_end(namespace: Namespace, name: str) -> dict[str, Any]:
    """Wait for the final status of a JobSet, which its controller sets some time after the end of the Jobs, and return it."""
    until(lambda: "terminalState" in jobset_status(namespace, name), 60, "the JobSet to end", lambda: namespace.describe(name))
    return jobset_status(namespace, name)


def running_pods(namespace: Namespace, name: str) -> list[str]:
    """Return the pods of a run's tasks that still run."""
    return [pod["metadata"]["name"] for pod in namespace.pods(name) if pod["status"]["phase"] in {"Pending", "Running"}]


@pytest.mark.parametrize("jobset", VERSIONS[-1:], indirect=True, scope="module")
class TestJobSetController:
    """JobSets where JobSet's controller runs."""

    def test_a_run_trains_to_its_end_and_all_its_tasks_end(self, controlled: Namespace, launcher: Launcher, tmp_path: Path) -> None:
        apply(controlled, "trained", f"{SERVED}{stand_in_spec(40, 0.05)}", tmp_path)
        launcher("wait", "trained", "--timeout", "5m", timeout=320)
        assert status_at_end(controlled, "trained")["terminalState"] == "Completed"
        status = launcher.status("trained")
        # The set ends with the chief; Jobs of others that had not ended by then are deleted.
        chief = next(task for task in status["tasks"] if task["name"] == "chief")
        assert (status["state"], status["step"], chief["state"]) == ("succeeded", 40, "succeeded")
        assert status["metrics"]["accuracy"] == 1.0
        until(lambda: running_pods(controlled, "trained") == [], 60, "its pods to end", lambda: controlled.describe("trained"))

    def test_a_program_whose_chief_succeeds_ends_all_tasks(self, controlled: Namespace, launcher: Launcher, tmp_path: Path) -> None:
        program = "command: [sh, -c, 'case $TF_CONFIG in *type*chief*) exec sleep 5;; esac; exec sleep 3600']\nlimits: {worker_grace: 1s}"
        apply(controlled, "ended", f"{SERVED}{program}\n", tmp_path)
        launcher("wait", "ended", "--timeout", "4m", timeout=260)
        assert status_at_end(controlled, "ended")["terminalState"] == "Completed"
        assert {task["state"] for task in launcher.status("ended")["tasks"]} == {"succeeded"}
        until(lambda: running_pods(controlled, "ended") == [], 60, "its pods to end", lambda: controlled.describe("ended"))

    def test_a_wrong_configuration_ends_all_tasks_at_once(self, controlled: Namespace, launcher: Launcher, tmp_path: Path) -> None:
        program = "command: [sh, -c, 'case $TF_CONFIG in *type*chief*) exit 2;; esac; exec sleep 3600']"
        apply(controlled, "wrong", f"{SERVED}{program}\n", tmp_path)
        launcher("wait", "wrong", "--timeout", "4m", code=1, timeout=260)
        status = status_at_end(controlled, "wrong")
        assert (status["terminalState"], status.get("restarts", 0)) == ("Failed", 0)
        until(lambda: running_pods(controlled, "wrong") == [], 60, "its pods to end", lambda: controlled.describe("wrong"))

    def test_tasks_that_restore_together_restart_together_and_resume_from_the_checkpoint(
        self, controlled: Namespace, launcher: Launcher, tmp_path: Path
    ) -> None:
        roles = "strategy: multi_worker_mirrored\nroles: {chief: {}, worker: {replicas: 1}}\nkubernetes: {tensorboard: false}\n"
        apply(controlled, "together", roles + stand_in_spec(checkpoint={"every_seconds": 2}), tmp_path)

        def saved() -> int:
            return max((event["step"] for event in controlled.events("together", "chief") if event["event"] == "checkpoint"), default=0)

        until(lambda: saved() > 0, 240, "a checkpoint", lambda: controlled.describe("together"))
        before = saved()
        assert before > 0
        pods = {pod["metadata"]["uid"] for pod in controlled.pods("together")}
        # The status that the kubelet sets for a container without an exit code of the trainer. The worker's Job has no attempts.
        (worker,) = controlled.pods("together", "worker")
        failed = {"status": {"phase": "Failed", "reason": "Lost", "message": "its container is gone"}}

        def starts_again() -> bool:
            """Set the pod's status again until its Job has seen it: the kubelet may overwrite it a moment later."""
            arguments = (worker["metadata"]["name"], "--subresource=status", "--type=merge", "-p", json.dumps(failed))
            controlled.kubectl("patch", "pod", *arguments, check=False)
            return jobset_status(controlled, "together").get("restarts") == 1

        until(starts_again, 60, "the set to start again", lambda: controlled.describe("together"))

        def resumes() -> bool:
            steps = [event["step"] for event in controlled.events("together", "chief") if event["event"] == "progress"]
            return bool(steps) and min(steps) > before and pods.isdisjoint(pod["metadata"]["uid"] for pod in controlled.pods("together"))

        until(resumes, 240, "steps after the checkpoint", lambda: controlled.describe("together"))
        assert launcher.status("together")["state"] == "running"
        controlled.kubectl("delete", "jobset", "together", "--timeout=90s", timeout=120)
        until(lambda: controlled.objects("Job", "together") == [], 60, "its Jobs to be deleted", lambda: controlled.describe("together"))

    def test_the_launcher_starts_stops_and_resumes_a_run_that_is_a_jobset(
        self, controlled: Namespace, launcher: Launcher, tmp_path: Path
    ) -> None:
        file = tmp_path / "gang.yaml"
        options = SERVED.replace("{tensorboard: false}", "{gang: jobset, tensorboard: false}")
        file.write_text(f"version: 1\nname: gang\n{options}{stand_in_spec(checkpoint={'every_seconds': 2})}")
        launcher("up", str(file), "--detach")
        await_checkpoint(controlled, launcher)
        assert "checkpoint" in launcher("logs", "gang", "--role", "chief")
        assert "+++" not in launcher("diff", str(file))
        assert "gang runs already" in launcher("up", str(file), "--detach", code=2)
        launcher("down", "gang")
        stopped = launcher.status("gang")
        assert stopped["state"] == "stopped"
        assert stopped["checkpoint_step"] >= stopped["step"] > 0
        assert (controlled.objects("JobSet", "gang"), controlled.objects("Job", "gang"), controlled.pods("gang")) == ([], [], [])
        launcher("up", str(file), "--detach")
        await_checkpoint(controlled, launcher)
        resumed = [event["step"] for event in controlled.events("gang", "chief") if event["event"] == "restored"]
        assert resumed == [stopped["checkpoint_step"]]
        launcher("down", "gang", "--delete-data", "--yes")

    def test_a_queue_with_room_for_one_admits_two_runs_one_after_the_other_each_as_a_whole(
        self, controlled: Namespace, queue: str, launcher: Launcher, tmp_path: Path
    ) -> None:
        roles = "strategy: parameter_server\nroles: {chief: {cpu: 0.2}, ps: {cpu: 0.2}, worker: {replicas: 2, cpu: 0.2}}\n"
        text = f"{roles}kubernetes: {{gang: jobset, queue: {queue}, tensorboard: false}}\n{stand_in_spec()}"
        for name in ("first", "second"):
            file = tmp_path / f"{name}.yaml"
            file.write_text(f"version: 1\nname: {name}\n{text}")
            launcher("up", str(file), "--detach", "--set", "train.params.step_seconds=0.05", "--set", "train.steps=1000000")
            if name == "first":
                until(lambda: len(running_pods(controlled, "first")) == 4, 120, "four pods", lambda: controlled.describe("first"))

        def waits() -> bool:
            return "insufficient unused quota for cpu" in launcher.status("second")["reason"]

        until(waits, 60, "a reason for which the second run waits", lambda: launcher("status", "second") + workloads(controlled))
        status = launcher.status("second")
        assert status["state"] == "pending"
        assert "waits for its queue team: " in status["reason"]
        assert controlled.pods("second") == []
        launcher("down", "first")
        until(lambda: len(running_pods(controlled, "second")) == 4, 120, "four pods", lambda: launcher("status", "second"))
        until(lambda: (launcher.status("second")["step"] or 0) > 0, 120, "a step", lambda: launcher("status", "second"))
        for name in ("first", "second"):
            launcher("down", name, "--delete-data", "--yes")


def workloads(namespace: Namespace) -> str:
    """Return Kueue's workloads."""
    return namespace.kubectl("get", "workloads", "-o", "yaml")


def await_checkpoint(namespace: Namespace, launcher: Launcher) -> None:
    """Wait until the run `gang` has saved a checkpoint since its last start."""
    until(
        lambda: any(event["event"] == "checkpoint" for event in namespace.events("gang", "chief")),
        240,
        "a checkpoint",
        lambda: launcher("status", "gang") + namespace.describe("gang"),
    )
