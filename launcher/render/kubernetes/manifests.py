"""All objects of a run in the order to apply them, as one YAML text or as a directory for `kubectl apply -k`."""

from collections.abc import Iterable

from launcher.errors import UsageError
from launcher.images import REPOSITORY, is_trainer_image, spec_image, tensorboard_image
from launcher.plan.addresses import TENSORBOARD_PORT
from launcher.render import tensorboard_command
from launcher.render.kubernetes import attendant_job, configmaps, jobs, jobset, network, pods, storage
from launcher.render.kubernetes.objects import (
    SECONDS_AFTER_RUN,
    TENSORBOARD,
    Object,
    Run,
    checked,
    metadata,
    pod_metadata,
    resource_list,
    selector,
)
from launcher.render.targets import RenderSource
from launcher.render.yaml_text import text
from launcher.spec.container_rules import is_mounted
from launcher.spec.models import ClusterSpec, TensorBoard
from launcher.spec.role_programs import volumes_of
from launcher.spec.rules import is_directory_name

KUSTOMIZATION = "kustomization.yaml"
# TensorBoard reads event files into memory: it needs 80 MiB at first (530 with TensorFlow), and some hundreds more as a run grows.
_TENSORBOARD_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
_TENSORBOARD_LIMITS = {"memory": "2Gi"}
_USAGE = """\
#   kubectl apply -k DIRECTORY
# No namePrefix and no nameSuffix here: the addresses of the tasks contain the run's name. Render the spec with another name instead.
"""


def render(source: RenderSource) -> str:
    """Return the manifests of a plan for kubernetes. Raises UsageError if it cannot run there."""
    head, _, manifests = _rendered(source)
    return head + "\n" + "---\n".join(text(manifest, {}) for manifest in manifests)


def files(source: RenderSource) -> dict[str, str]:
    """Return the manifests as the files of a directory: file name -> text, one file for each kind and a kustomization."""
    head, run, manifests = _rendered(source)
    kinds: dict[str, list[Object]] = {}
    for manifest in manifests:
        kinds.setdefault(f"{manifest['kind'].lower()}.yaml", []).append(manifest)
    by_kind = {name: "---\n".join(text(manifest, {}) for manifest in kind_objects) for name, kind_objects in kinds.items()}
    return {KUSTOMIZATION: f"{head}{_USAGE}\n{text(_kustomization(run, list(kinds)), {})}", **by_kind}


def objects(run: Run) -> list[Object]:
    """Return the objects of a run, in an order in which each comes after those that it needs."""
    tasks = [jobset.jobset(run)] if run.options.gang == "jobset" else [network.headless_service(run), *jobs.jobs(run)]
    return [*prerequisites(run), *attendant_job.account(run), *tasks, *attendant_job.job(run), *_tensorboard(run)]


def prerequisites(run: Run) -> list[Object]:
    """Return the objects that tasks need before they start: volume, addresses, code, and network policies."""
    return [*storage.claim(run), configmaps.cluster(run), *configmaps.code(run), *configmaps.parent(run), *network.policies(run)]


def run_of(source: RenderSource) -> Run:
    """Return the input of the renderer. Raises UsageError for data on this machine, which pods cannot read."""
    _check_data(source.spec)
    run = Run(source.spec, source.plan, spec_image(source.spec))
    return jobset.with_jobset_addresses(run) if run.options.gang == "jobset" else run


def _rendered(source: RenderSource) -> tuple[str, Run, list[Object]]:
    """Return the comment above the objects, the input of the renderer, and the objects."""
    attendant_job.check_namespace(source.spec)
    run = run_of(source)
    manifests = objects(run)
    lines = [
        f"{run.name} for Kubernetes {run.version} or newer." + (f" Made by: {source.title}" if source.title else ""),
        _image_line(run.images),
        *(f"Note: {notice}." for notice in _notices(run, manifests)),
    ]
    return "".join(f"# {line}\n" for line in lines), run, manifests


def _image_line(images: list[str]) -> str:
    [image, *others] = images
    push = " (`launcher image build` makes ours, --push puts it into one)" if any(map(is_trainer_image, images)) else ""
    if not others:
        return f"Its nodes need the image {image}, or a registry that has it{push}."
    return f"Its nodes need the images {', '.join(images)}, or registries that have them{push}."


def _kustomization(run: Run, files: list[str]) -> Object:
    """Return the kustomization that lists the files in the order to apply them."""
    kustomization: Object = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if run.options.namespace:
        kustomization["namespace"] = run.options.namespace
    kustomization["resources"] = files
    if ours := [name for name in run.images if is_trainer_image(name)]:
        # To use a registry, change the name here; nodes to which the image was copied have it under this name.
        tag = {"newTag": ours[0].rpartition(":")[2]} if len(ours) == 1 else {}
        kustomization["images"] = [{"name": REPOSITORY, "newName": REPOSITORY, **tag}]
    return kustomization


def _notices(run: Run, manifests: list[Object]) -> list[str]:
    about_objects = filter(None, (storage.notice(run), configmaps.notice(manifests)))
    notices = [*about_objects, *run.plan.notices, *_unsent_messages(run.spec)]
    if run.options.gang == "jobset":
        return [*jobset.notices(run), *notices]
    if run.options.attendant is None and any(
        SECONDS_AFTER_RUN in (manifest["metadata"].get("annotations") or {}) for manifest in manifests
    ):
        notices.append(
            "tasks without the trainer's parent do not end with the run by themselves: `launcher up` or `launcher wait` ends them, or an attendant"
            " (kubernetes.attendant), or delete their Jobs"
        )
    if run.options.queue:
        notices.append("Kueue admits the Job of each role by itself; with `kubernetes: {gang: jobset}` it admits all or none")
    return notices


def _unsent_messages(spec: ClusterSpec) -> Iterable[str]:
    """Yield a notice for each channel of `notify` that is not used after `kubectl apply`: no launcher watches such a run."""
    if spec.notify is None:
        return
    if spec.notify.command is not None:
        yield "the program of `notify` is not run: only a launcher that watches a run of `launcher up` runs it"
    if spec.notify.webhook is not None and spec.kubernetes.attendant is None:
        yield "the webhook of `notify` gets no messages: for that the run needs an attendant (kubernetes.attendant)"


def _check_data(spec: ClusterSpec) -> None:
    for volume in spec.volumes:
        if volume.source is None:
            raise UsageError(
                f"the volume {volume.name} is {volume.path}, a directory of this machine; pods do not see it",
                "add its `source` on Kubernetes, such as {persistentVolumeClaim: {claimName: sets}}",
            )
    if spec.train is None or not is_directory_name(spec.train) or is_mounted(volumes_of(spec), spec.train.data):
        return
    raise UsageError(
        f"train.data is {spec.train.data}, a directory of this machine; pods do not see it",
        "put the data on a volume, mount that by `volumes`, and name the directory below its mount_path",
    )


def _tensorboard(run: Run) -> list[Object]:
    """Return the Service and the Deployment of TensorBoard, which reads the run's volume; none if the run has no TensorBoard."""
    tensorboard = run.spec.tensorboard
    if tensorboard is None or not run.has_tensorboard:
        return []
    name = checked(f"{run.name}-tensorboard")
    deployment = {
        "replicas": 1,
        # Never two pods: only one pod at a time may be able to mount the volume.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(run, TENSORBOARD)},
        "template": _tensorboard_pod(run, tensorboard),
    }
    service = {
        "selector": selector(run, TENSORBOARD),
        "ports": [{"name": "http", "port": tensorboard.port, "targetPort": TENSORBOARD_PORT}],
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata(run, name, TENSORBOARD), "spec": service},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(run, name, TENSORBOARD), "spec": deployment},
    ]


def _tensorboard_pod(run: Run, tensorboard: TensorBoard) -> Object:
    head = pod_metadata(run, TENSORBOARD)
    head["labels"] |= storage.volume_labels(run)
    volume, mount = pods.tmp()
    quantities = resource_list(tensorboard.cpu, tensorboard.memory)
    container = pods.base_container(run, TENSORBOARD, tensorboard_command.command(run.spec, run.plan)) | {
        "image": tensorboard_image(run.spec),
        "env": [{"name": "HOME", "value": mount["mountPath"]}],
        "ports": [{"name": "http", "containerPort": TENSORBOARD_PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
        "resources": {"requests": _TENSORBOARD_REQUESTS | quantities, "limits": _TENSORBOARD_LIMITS | quantities},
        "volumeMounts": [storage.mount(read_only=True), mount],
    }
    spec: Object = {
        **pods.hardened_pod_fields(run),
        **pods.scheduling(run),
        **({"affinity": {"podAffinity": affinity}} if (affinity := storage.volume_affinity(run, TENSORBOARD)) else {}),
        "containers": [container],
        "volumes": [storage.volume(run), volume],
    }
    return pods.with_overrides(run, TENSORBOARD, {"metadata": head, "spec": spec})
