"""The network of a run: the headless Service by which its tasks find each other, and the NetworkPolicies about other pods. Pure."""

from launcher.plan.addresses import ALL_REDUCE_PORT, PORT, TENSORBOARD_PORT
from launcher.render.kubernetes.objects import TASK_LABEL, TENSORBOARD, Object, Run, checked, metadata, selector
from trainer.strategies import STRATEGIES

# DNS anywhere: it may be in another namespace or on the node. Its pods may listen on 5353, e.g. on OpenShift.
DNS: list[Object] = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]


def headless_service(run: Run) -> Object:
    """Return the Service that gives each task its DNS name, even before it is ready, because tasks wait for each other."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _tasks(run),
        "ports": [{"name": "grpc", "port": PORT, "targetPort": PORT}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(run, checked(run.name)), "spec": spec}


def policies(run: Run) -> list[Object]:
    """Return the policies: only tasks of the run may reach a task; every address may reach TensorBoard."""
    tasks = {"matchLabels": _tasks(run)}
    ports: Object = {}
    if not _uses_other_ports(run):
        numbers = [PORT, ALL_REDUCE_PORT] if STRATEGIES[run.spec.strategy].all_reduces else [PORT]
        ports = {"ports": [{"protocol": "TCP", "port": port} for port in numbers]}
    own = _policy(run, run.name, tasks, {"from": [{"podSelector": tasks}], **ports}, None)
    if run.options.egress == "tasks":
        own["spec"] |= {"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": DNS}, {"to": [{"podSelector": tasks}], **ports}]}
    network_policies = [own]
    if run.has_tensorboard:
        tensorboard = {"matchLabels": selector(run, TENSORBOARD)}
        open_port: Object = {"ports": [{"protocol": "TCP", "port": TENSORBOARD_PORT}]}
        network_policies.append(_policy(run, f"{run.name}-tensorboard", tensorboard, open_port, TENSORBOARD))
    return network_policies


def _tasks(run: Run) -> dict[str, str]:
    return {TASK_LABEL: run.name}


def _uses_other_ports(run: Run) -> bool:
    """Return whether tasks use other ports besides TensorFlow's: NCCL chooses its own, and a user's program may."""
    return run.spec.train is None or any(task.resources.gpus for task in run.plan.tasks)


def _policy(run: Run, name: str, pods: Object, rule: Object, component: str | None) -> Object:
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [rule]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(run, name, component), "spec": spec}
