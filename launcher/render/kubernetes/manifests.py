"""All objects of a run in the order to apply them, as one YAML text or as a directory for `kubectl apply -k`. Pure."""

from collections.abc import Iterable

from launcher.errors import UsageError
from launcher.images import REPOSITORY, image_for, is_ours, tensorboard_image
from launcher.render import tensorboard_command
from launcher.render.kubernetes import attendant_job, configmaps, jobs, jobset, network, pods, storage
from launcher.render.kubernetes.objects import (
    ENDS_AFTER,
    TENSORBOARD,
    Object,
    Run,
    amounts,
    checked,
    metadata,
    pod_metadata,
    selector,
)
from launcher.render.targets import Source
from launcher.render.yaml_text import text
from launcher.spec.container_rules import is_mounted
from launcher.spec.models import ClusterSpec, TensorBoard
from launcher.spec.role_programs import volumes_of
from launcher.spec.rules import is_directory_name

KUSTOMIZATION = "kustomization.yaml"
# TensorBoard reads event files into memory; what it needs grows with a run, from 80 MiB (with TensorFlow in it 530) by some hundreds.
_TENSORBOARD_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
_TENSORBOARD_LIMITS = {"memory": "2Gi"}
_USE = """\
#   kubectl apply -k DIRECTORY
# No namePrefix and no nameSuffix here: the addresses of the tasks have the run's name in them. Render the spec with another name.
"""


def render(source: Source) -> str:
    """Return the manifests of a plan for kubernetes. Raises UsageError for what cannot run there."""
    attendant_job.check_namespace(source.spec)
    return document(header(source, _notes(source)), objects(run_of(source)))


def files(source: Source) -> dict[str, str]:
    """Return the same as a directory: file name -> text, one file a kind and a kustomization."""
    attendant_job.check_namespace(source.spec)
    return directory(source, header(source, _notes(source)), objects(run_of(source)))


def objects(run: Run) -> list[Object]:
    """Return the objects of a run: what others need comes first."""
    tasks = [jobset.jobset(run)] if run.options.gang == "jobset" else [network.headless(run), *jobs.jobs(run)]
    return [*surroundings(run), *attendant_job.account(run), *tasks, *attendant_job.job(run), *_tensorboard(run)]


def surroundings(run: Run) -> list[Object]:
    """Return what the tasks of a run need before they start: volume, addresses, code, and the policies that shut others out."""
    return [*storage.claim(run), configmaps.cluster(run), *configmaps.code(run), *configmaps.parent(run), *network.policies(run)]


def run_of(source: Source) -> Run:
    """Return what is rendered. Raises UsageError for data of this machine, which no pod can see."""
    _check_data(source.spec)
    run = Run(source.spec, source.plan, image_for(source.spec))
    return jobset.with_jobset_addresses(run) if run.options.gang == "jobset" else run


def notes(run: Run, made: list[Object]) -> list[str]:
    """Return what a person should know about the objects."""
    found = [storage.notice(run), configmaps.notice(made)]
    return [note for note in found if note]


def header(source: Source, remarks: Iterable[str]) -> str:
    """Return the comment above the objects."""
    name = source.plan.name
    run = Run(source.spec, source.plan, image_for(source.spec))
    lines = [
        f"{name} for Kubernetes {run.version} or newer." + (f" Made by: {source.title}" if source.title else ""),
        _needed(run.images),
        *(f"Note: {remark}." for remark in remarks),
    ]
    return "".join(f"# {line}\n" for line in lines)


def _needed(images: list[str]) -> str:
    [image, *others] = images
    push = " (`launcher image build` makes ours, --push puts it into one)" if any(map(is_ours, images)) else ""
    if not others:
        return f"Its nodes need the image {image}, or a registry that has it{push}."
    return f"Its nodes need the images {', '.join(images)}, or registries that have them{push}."


def document(head: str, made: Iterable[Object]) -> str:
    """Return objects as one YAML text."""
    return head + "\n" + "---\n".join(text(one, {}) for one in made)


def directory(source: Source, head: str, made: Iterable[Object]) -> dict[str, str]:
    """Return objects as files, one a kind, with the kustomization that names them in order."""
    kinds: dict[str, list[Object]] = {}
    for one in made:
        kinds.setdefault(f"{one['kind'].lower()}.yaml", []).append(one)
    kustomization: Object = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if source.spec.kubernetes.namespace:
        kustomization["namespace"] = source.spec.kubernetes.namespace
    kustomization["resources"] = list(kinds)
    if ours := [name for name in run_of(source).images if is_ours(name)]:
        # The one place to name a registry in: what was built here is called so on nodes that were given it alone.
        tag = {"newTag": ours[0].rpartition(":")[2]} if len(ours) == 1 else {}
        kustomization["images"] = [{"name": REPOSITORY, "newName": REPOSITORY, **tag}]
    listed = {name: "---\n".join(text(one, {}) for one in those) for name, those in kinds.items()}
    return {KUSTOMIZATION: f"{head}{_USE}\n{text(kustomization, {})}", **listed}


def _notes(source: Source) -> list[str]:
    run = run_of(source)
    found = [*notes(run, objects(run)), *run.plan.notices, *_undelivered(source.spec)]
    if run.options.gang == "jobset":
        return [*jobset.notes(run), *found]
    if run.options.attendant is None and any(ENDS_AFTER in (one["metadata"].get("annotations") or {}) for one in objects(run)):
        found.append(
            "tasks without the trainer's parent do not end with the run by themselves: `launcher up` or `launcher wait` ends them, or an attendant"
            " (kubernetes.attendant), or delete their Jobs"
        )
    if run.options.queue:
        found.append("Kueue admits the Job of each role by itself; with `kubernetes: {gang: jobset}` it admits all or none")
    return found


def _undelivered(spec: ClusterSpec) -> Iterable[str]:
    """Yield which messages of `notify` nobody sends: no launcher knows what objects that somebody else applies are to tell."""
    if spec.notify is None:
        return
    if spec.notify.command is not None:
        yield "nobody runs the program of `notify`: a launcher does that watches a run of `launcher up`"
    if spec.notify.webhook is not None and spec.kubernetes.attendant is None:
        yield "nobody tells the webhook of `notify`, for which the run needs an attendant (kubernetes.attendant)"


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
    """Return the Service and the Deployment of TensorBoard, which reads the run's volume; none where the spec wants none."""
    wanted = run.spec.tensorboard
    if wanted is None or not run.has_tensorboard:
        return []
    name = checked(f"{run.name}-tensorboard")
    deployment = {
        "replicas": 1,
        # Never two of them: the volume may be one that one pod at a time can mount.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector(run, TENSORBOARD)},
        "template": _tensorboard_pod(run, wanted),
    }
    service = {
        "selector": selector(run, TENSORBOARD),
        "ports": [{"name": "http", "port": wanted.port, "targetPort": tensorboard_command.PORT}],
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata(run, name, TENSORBOARD), "spec": service},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(run, name, TENSORBOARD), "spec": deployment},
    ]


def _tensorboard_pod(run: Run, wanted: TensorBoard) -> Object:
    head = pod_metadata(run, TENSORBOARD)
    head["labels"] |= storage.volume_labels(run)
    volume, mount = pods.tmp()
    given = amounts(wanted.cpu, wanted.memory)
    container = pods.base_container(run, TENSORBOARD, tensorboard_command.command(run.spec, run.plan)) | {
        "image": tensorboard_image(run.spec),
        "env": [{"name": "HOME", "value": mount["mountPath"]}],
        "ports": [{"name": "http", "containerPort": tensorboard_command.PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
        "resources": {"requests": _TENSORBOARD_REQUESTS | given, "limits": _TENSORBOARD_LIMITS | given},
        "volumeMounts": [storage.mount(read_only=True), mount],
    }
    spec: Object = {
        **pods.hardened(run),
        **pods.placement(run),
        **({"affinity": {"podAffinity": affinity}} if (affinity := storage.together(run, TENSORBOARD)) else {}),
        "containers": [container],
        "volumes": [storage.volume(run), volume],
    }
    return pods.overridden(run, TENSORBOARD, {"metadata": head, "spec": spec})
