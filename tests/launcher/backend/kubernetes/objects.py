"""Jobs, pods and events as the API server returns them, and the kubeconfig of a test server."""

import json
from datetime import UTC, datetime
from typing import Any

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC).timestamp()
CREATED = "2026-01-01T00:06:00Z"


def job(role: str, count: int = 1, *conditions: dict[str, str], **spec: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": role, **spec.pop("labels", {})}
    return {
        "metadata": {"name": f"digits-{role}", "uid": role, "labels": labels, "annotations": {"tf-launcher/strategy": "parameter_server"}},
        "spec": {"completions": count, **spec},
        "status": {"startTime": CREATED, "conditions": list(conditions)},
    }


def pod(role: str, index: int, phase: str, created: str = CREATED, **state: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"digits-{role}-{index}-{created[-3:-1]}",
            "uid": f"{role}-{index}-{created}",
            "creationTimestamp": created,
            "labels": {"app.kubernetes.io/component": role},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        },
        "spec": {"hostname": f"digits-{role}-{index}", "subdomain": "digits", "nodeName": "node-1"},
        "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}]},
    }


def running(role: str, index: int = 0, created: str = CREATED) -> dict[str, Any]:
    return pod(role, index, "Running", created, running={"startedAt": created})


def ended(
    role: str, code: int, index: int = 0, created: str = CREATED, message: str = "", at: str = "2026-01-01T00:09:00Z", reason: str = ""
) -> dict[str, Any]:
    terminated = {"exitCode": code, "finishedAt": at, "reason": reason or ("Error" if code else "Completed"), "message": message}
    return pod(role, index, "Failed" if code else "Succeeded", created, terminated=terminated)


class StandInClock:
    """In place of the module `time`: it goes on only by sleeping."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


COMPLETE = {"type": "Complete", "status": "True"}
FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}


def event(reason: str, message: str, at: str, **involved_object: str) -> dict[str, Any]:
    return {"type": "Normal", "reason": reason, "message": message, "lastTimestamp": at, "involvedObject": involved_object}


def kubeconfig(port: int, user: object) -> str:
    """Return a kubeconfig with a server on this machine and a user with these credentials; its context is named `here`."""
    cluster = {"cluster": {"server": f"http://127.0.0.1:{port}"}, "name": "c"}
    context = {"context": {"cluster": "c", "user": "u", "namespace": "n"}, "name": "here"}
    config = {"clusters": [cluster], "contexts": [context], "current-context": "here", "users": [{"name": "u", "user": user}]}
    return json.dumps({"apiVersion": "v1", "kind": "Config", **config})
