"""The network of a run: the headless Service by which its tasks find each other, and the NetworkPolicies about other pods. Pure."""

from launcher.plan.addresses import EXCHANGE_PORT, PORT
from launcher.render import tensorboard_command
from launcher.render.kubernetes.objects import CLUSTER_LABEL, TENSORBOARD, Object, Run, checked, metadata, selector
from trainer.strategies import STRATEGIES

# DNS wherever it is: in a namespace of its own, or on the node. Its pods may listen on 5353, as OpenShift's do.
DNS: list[Object] = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]


def headless(run: Run) -> Object:
    """Return the Service that gives each task its name. Names are there before the tasks are ready: tasks wait for each other."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _tasks(run),
        "ports": [{"name": "grpc", "port": PORT, "targetPort": PORT}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(run, checked(run.name)), "spec": spec}


def policies(run: Run) -> list[Object]:
    """Return the policies: only tasks of its run may reach a task, and everybody in the cluster TensorBoard."""
    tasks = {"matchLabels": _tasks(run)}
    ports: Object = {}
    if not _uses_other_ports(run):
        numbers = [PORT, EXCHANGE_PORT] if STRATEGIES[run.spec.strategy].all_reduces else [PORT]
        ports = {"ports": [{"protocol": "TCP", "port": port} for port in numbers]}
    own = _policy(run, run.name, tasks, {"from": [{"podSelector": tasks}], **ports}, None)
    if run.options.egress == "tasks":
        own["spec"] |= {"policyTypes": ["Ingress", "Egress"], "egress": [{"ports": DNS}, {"to": [{"podSelector": tasks}], **ports}]}
    found = [own]
    if run.has_tensorboard:
        tensorboard = {"matchLabels": selector(run, TENSORBOARD)}
        open_port: Object = {"ports": [{"protocol": "TCP", "port": tensorboard_command.PORT}]}
        found.append(_policy(run, f"{run.name}-tensorboard", tensorboard, open_port, TENSORBOARD))
    return found


def _tasks(run: Run) -> dict[str, str]:
    return {CLUSTER_LABEL: run.name}


def _uses_other_ports(run: Run) -> bool:
    """Return whether tasks talk to each other on more than TensorFlow's port: NCCL chooses its own, a user's program may."""
    return run.spec.train is None or any(task.resources.gpus for task in run.plan.tasks)


def _policy(run: Run, name: str, pods: Object, rule: Object, component: str | None) -> Object:
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [rule]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(run, name, component), "spec": spec}
