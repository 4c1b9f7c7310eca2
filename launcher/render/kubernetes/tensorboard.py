"""TensorBoard beside a run: a Deployment that reads the run's volume, and the Service in front of it. Pure."""

from launcher.images import board_image
from launcher.render import tensorboard_command
from launcher.render.kubernetes import pods, storage
from launcher.render.kubernetes.objects import TENSORBOARD, Object, Run, amounts, checked, metadata, pod_metadata, selector
from launcher.spec.models import TensorBoard

# TensorBoard reads event files into memory; what it needs grows with a run, from 80 MiB (with TensorFlow in it 530) by some hundreds.
_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
_LIMITS = {"memory": "2Gi"}


def tensorboard(run: Run) -> list[Object]:
    """Return the objects of TensorBoard; none where the spec wants none."""
    wanted = run.spec.tensorboard
    if wanted is None or not run.has_tensorboard:
        return []
    name = checked(f"{run.name}-tensorboard")
    deployment = {
        "replicas": 1,
        # Never two of them: the volume may be one that one pod at a time can mount.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(run, TENSORBOARD)},
        "template": _template(run, wanted),
    }
    service = {
        "selector": selector(run, TENSORBOARD),
        "ports": [{"name": "http", "port": wanted.port, "targetPort": tensorboard_command.PORT}],
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata(run, name, TENSORBOARD), "spec": service},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(run, name, TENSORBOARD), "spec": deployment},
    ]


def _template(run: Run, wanted: TensorBoard) -> Object:
    head = pod_metadata(run, TENSORBOARD)
    head["labels"] |= storage.volume_labels(run)
    volume, mount = pods.tmp()
    given = amounts(wanted.cpu, wanted.memory)
    container = pods.container(run, TENSORBOARD, tensorboard_command.command(run.spec, run.plan)) | {
        "image": board_image(run.spec),
        "env": [{"name": "HOME", "value": mount["mountPath"]}],
        "ports": [{"name": "http", "containerPort": tensorboard_command.PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
        "resources": {"requests": _REQUESTS | given, "limits": _LIMITS | given},
        "volumeMounts": [storage.mount(read_only=True), mount],
    }
    spec: Object = {
        **pods.hardened(run),
        **pods.placed(run),
        **({"affinity": {"podAffinity": affinity}} if (affinity := storage.together(run, TENSORBOARD)) else {}),
        "containers": [container],
        "volumes": [storage.volume(run), volume],
    }
    return pods.overridden(run, TENSORBOARD, {"metadata": head, "spec": spec})
