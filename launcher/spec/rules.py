"""Rules between fields, and between the spec and the files beside it.

Each rule is a function from a RuleContext to findings. RULES names the paths that must be valid for a rule to run. Others need not be,
so that one pass finds every problem.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

from pydantic import ValidationError

from launcher.errors import nearest
from launcher.spec import code_rules, container_rules, messages, names, program_rules, quantities
from launcher.spec.kubernetes import SIDECARS_SINCE, parse_version
from launcher.spec.problems import FieldError, Finding, Path, all_of, any_of, path_text, shown
from launcher.spec.role_programs import ROLES, containers_of, leading_role, roles_of, volumes_of
from launcher.spec.rule_context import RuleContext, entries_of, resolved
from trainer.settings import Train, direction
from trainer.settings_rules import conflicts
from trainer.strategies import STRATEGIES, TRAINING_STRATEGIES, Strategy, Traits
from trainer.workloads import catalog

# Without regular expression features that JSON Schema lacks.
_WORD = "[A-Za-z_][A-Za-z0-9_]*"
OBJECT_REFERENCE_PATTERN = rf"^{_WORD}(\.{_WORD})*:{_WORD}(\.{_WORD})*$"
_OBJECT_REFERENCE = re.compile(rf"{OBJECT_REFERENCE_PATTERN[:-1]}\Z")
_DOTTED = re.compile(rf"({_WORD}(?:\.{_WORD})*)[.:/]+([A-Z][A-Za-z0-9_]*)\Z")
DATA_KEYWORDS = ("synthetic", "download")


Rule = Callable[[RuleContext], Iterator[Finding]]


# The first worker of a user's program may be the leader, as in TensorFlow 1.
_SERVERS = STRATEGIES["parameter_server"]._replace(mandatory=("worker", "ps"), optional=("chief", "evaluator"))
COMMAND_STRATEGIES: dict[Strategy, Traits] = {**STRATEGIES, "parameter_server": _SERVERS}
_SINGLE_REMEDIES = {"chief": "leave `replicas` out; add workers for more computing power", "evaluator": "leave `replicas` out"}


def roles_fit_strategy(context: RuleContext) -> Iterator[Finding]:
    """Every role that the strategy requires is there, and no role that it does not allow."""
    strategy, present = context.spec.strategy, roles_of(context.spec)
    allowed = (COMMAND_STRATEGIES if program_rules.runs_a_program(context) else STRATEGIES)[strategy]
    expected = f"{all_of(allowed.mandatory)}; {all_of(allowed.optional)} if you like"
    # Without `roles` in the file, the finding is at the strategy.
    location = None if ("roles",) in context.document.sources else context.document.location(("strategy",))
    for role in allowed.mandatory:
        if role not in present:
            message = f"strategy {strategy} needs a {role}, and there is none"
            yield Finding(("roles", role), message, expected, f"add `{role}: {{}}` to `roles`", location=location)
    for role in present:
        if role not in allowed.mandatory + allowed.optional:
            fitting = any_of(name for name, other in STRATEGIES.items() if role in other.mandatory + other.optional)
            message = f"strategy {strategy} has no {role}"
            yield Finding(("roles", role), message, expected, f"remove `{role}`, or set `strategy` to {fitting}", on="key")


def one_chief_and_evaluator(context: RuleContext) -> Iterator[Finding]:
    """There is at most one chief and one evaluator."""
    for role, remedy in _SINGLE_REMEDIES.items():
        count = getattr(context.spec.roles, role).replicas if getattr(context.spec.roles, role) else 1
        if count > 1:
            yield Finding(("roles", role, "replicas"), f"{count} {role}s, but a cluster has one", "1", remedy)


def gpu_type_with_gpus(context: RuleContext) -> Iterator[Finding]:
    """A GPU type is only set with a number of GPUs."""
    for name, role in roles_of(context.spec).items():
        if role.gpu_type is not None and role.gpus == 0 and context.is_valid(("roles", name, "gpus")):
            message = f"a type of GPU is given, {shown(role.gpu_type)}, but no number of GPUs"
            path = ("roles", name, "gpu_type")
            yield Finding(path, message, "`gpus` of 1 or more beside it", "add `gpus: 1`, or remove `gpu_type`", on="key")


def gpus_for_all_that_exchange_gradients(context: RuleContext) -> Iterator[Finding]:
    """Tasks of an all-reduce all train on GPUs, or all on CPUs: it uses NCCL or TCP, not both. See trainer/engine/collectives/all_reduce.py."""
    spec = context.spec
    if not STRATEGIES[spec.strategy].all_reduces or spec.train is None or not (spec.roles.chief and spec.roles.worker):
        return
    gpus = {"chief": spec.roles.chief.gpus, "worker": spec.roles.worker.gpus}
    for role, other in (("chief", "worker"), ("worker", "chief")):
        if gpus[other] and not gpus[role]:
            message = f"the {role} has no GPU, and the {other} has: their gradients cannot be combined"
            remedy = f"write `gpus: {gpus[other]}` for the {role}, too, or remove it from the {other}"
            yield Finding(("roles", role), message, "`gpus` for chief and worker, or for neither", remedy, on="key")


def no_empty_section(context: RuleContext) -> Iterator[Finding]:
    """A section has a value: `worker:` alone may mean a worker with defaults, or none."""
    for path in (*(("roles", role) for role in ROLES), ("train",), ("train", "sync")):
        if context.is_empty(path):
            remedy = f"write `{path[-1]}: {{}}` for the defaults, or remove it" if path[0] == "roles" else "fill it in, or remove it"
            yield Finding(path, f"`{path[-1]}` has no value", "a mapping", remedy, on="key")


def workload_exists(context: RuleContext) -> Iterator[Finding]:
    """The workload is built in, or is package.module:name of the user's code."""
    if context.spec.train is None:
        return
    try:
        check_workload(context.spec.train.workload)
    except FieldError as error:
        yield Finding(("train", "workload"), error.message, error.expected, error.remedy)


def check_workload(workload: str) -> None:
    """Raise FieldError when this is neither a built-in workload nor package.module:name."""
    if workload in catalog.CATALOG or _OBJECT_REFERENCE.match(workload):
        return
    if match := _DOTTED.match(workload):
        meant: str | None = f"{match[1]}:{match[2]}"
    else:
        meant = nearest(workload, catalog.CATALOG)
    kind = "is not package.module:name" if ":" in workload else "is not a built-in workload"
    expected = f"{', '.join(catalog.CATALOG)}, or package.module:name of your own code"
    raise FieldError(f"{shown(workload)} {kind}", expected, f"write {meant}" if meant else "choose one of them")


def params_fit_workload(context: RuleContext) -> Iterator[Finding]:
    """The workload's own model accepts its parameters."""
    train = context.spec.train
    entry = catalog.CATALOG.get(train.workload) if train else None
    if train is None or entry is None:
        return
    try:
        entry.params.model_validate(train.params)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        yield from messages.findings(errors, entry.params, context.document.sources, ("train", "params"))


def workload_fits_strategy(context: RuleContext) -> Iterator[Finding]:
    """The workload can be trained with the strategy."""
    train, strategy = context.spec.train, context.spec.strategy
    entry = catalog.CATALOG.get(train.workload) if train else None
    if train and entry and strategy not in entry.strategies:
        message = f"the workload {train.workload} does not run with strategy {strategy}"
        fitting = any_of(entry.strategies)
        yield Finding(("train", "workload"), message, f"strategy {fitting}", "change `strategy` or `workload`")


def sync_is_possible(context: RuleContext) -> Iterator[Finding]:
    """Synchronous updates are an option of parameter servers."""
    train, strategy = context.spec.train, context.spec.strategy
    if train and train.sync and STRATEGIES[strategy].trains and not STRATEGIES[strategy].uses_servers:
        message = f"`sync` belongs to parameter_server; strategy {strategy} is always synchronous"
        yield Finding(("train", "sync"), message, "strategy parameter_server", "remove `sync`", on="key")


def settings_fit(context: RuleContext) -> Iterator[Finding]:
    """The train settings fit each other and the strategy. A workload that does not run with the strategy has a finding already."""
    train, strategy = context.spec.train, context.spec.strategy
    entry = catalog.CATALOG.get(train.workload) if train else None
    for conflict in conflicts(train, strategy) if train and (entry is None or strategy in entry.strategies) else ():
        yield Finding(("train", *conflict.path), conflict.message, conflict.expected, conflict.remedy, on="key")


def early_stopping_has_evaluations(context: RuleContext) -> Iterator[Finding]:
    """Early stopping needs evaluations."""
    train = context.spec.train
    if context.spec.roles.evaluator is not None or context.spec.strategy not in TRAINING_STRATEGIES:
        return
    if train and train.early_stopping and not catalog.with_defaults(train, context.spec.strategy).evaluate.every_steps:
        message = "early stopping without evaluations: `train.evaluate.every_steps` is 0"
        remedy = "set `train.evaluate.every_steps` to 500, for example"
        yield Finding(("train", "early_stopping"), message, "`train.evaluate.every_steps` of 1 or more", remedy, on="key")


def enough_workers(context: RuleContext) -> Iterator[Finding]:
    """There are at least as many workers as gradients that a synchronous step waits for."""
    train, worker = context.spec.train, context.spec.roles.worker
    if train and train.sync and worker and train.sync.replicas_to_aggregate > worker.replicas:
        count = train.sync.replicas_to_aggregate
        message = f"a step waits for {count} gradients, but there are {worker.replicas} workers"
        remedy = f"write {worker.replicas}, or add workers"
        yield Finding(("train", "sync", "replicas_to_aggregate"), message, f"at most {worker.replicas}, the number of workers", remedy)


def evaluator_has_work(context: RuleContext) -> Iterator[Finding]:
    """An evaluator has checkpoints to evaluate; `train.evaluate.every_steps` is only for a chief without an evaluator."""
    train = context.spec.train
    if train is None or context.spec.roles.evaluator is None or context.spec.strategy not in TRAINING_STRATEGIES:
        return
    merged = catalog.with_defaults(train)
    if merged.checkpoint.every_steps is None and merged.checkpoint.every_seconds is None:
        message = "an evaluator without checkpoints to evaluate: none are saved before the end"
        expected = "`train.checkpoint.every_steps` or `train.checkpoint.every_seconds`"
        yield Finding(("roles", "evaluator"), message, expected, "set one of them, or remove the evaluator", on="key")


def export_metric_has_direction(context: RuleContext) -> Iterator[Finding]:
    """For the metric that selects the exported model, it is known whether a higher or a lower value is better."""
    export = context.spec.train.export if context.spec.train else None
    if export and export.metric and direction(export.metric, export.mode) is None:
        message = f"{shown(export.metric)} does not show whether a higher or a lower value is better"
        yield Finding(
            ("train", "export", "metric"), message, "`mode: max` or `mode: min` beside it", "add `mode: max`, if higher is better"
        )


def deadline_after_start(context: RuleContext) -> Iterator[Finding]:
    """A run's deadline leaves time to start."""
    limits = context.spec.limits
    if limits.deadline and quantities.parse_duration(limits.deadline) < quantities.parse_duration(limits.start_timeout):
        default = "" if ("limits", "start_timeout") in context.document.sources else ", the default"
        message = f"the deadline {limits.deadline} is shorter than `limits.start_timeout`, {limits.start_timeout}{default}"
        remedy = f"raise the deadline, or set `start_timeout` to {limits.deadline} or less"
        yield Finding(("limits", "deadline"), message, f"{limits.start_timeout} or more", remedy)


def code_exists(context: RuleContext) -> Iterator[Finding]:
    """The user's code is a directory."""
    if context.spec.code is not None:
        yield from _directory(context, ("code",), context.spec.code, "a directory with your code")


def working_dir_exists(context: RuleContext) -> Iterator[Finding]:
    """A role's `working_dir` is a path in its container, or a directory that exists."""
    for name, role in roles_of(context.spec).items():
        path = ("roles", name, "working_dir")
        if role.working_dir is not None and not role.working_dir.startswith("/") and context.is_valid(path):
            expected = "a path in the container, which starts with /, or a directory relative to the spec, for containers one in `code`"
            yield from _directory(context, path, role.working_dir, expected)


def data_exists(context: RuleContext) -> Iterator[Finding]:
    """The data set is synthetic, downloaded, at a URL, or in a directory that exists."""
    train = context.spec.train
    if train is not None and is_directory_name(train) and not container_rules.is_mounted(volumes_of(context.spec), train.data):
        expected = "synthetic, download, a URL that the workload reads, or a directory with the data set"
        yield from _directory(context, ("train", "data"), train.data, expected, DATA_KEYWORDS)


def is_directory_name(train: Train) -> bool:
    """Return whether `data` names a directory of this machine, and not a keyword or a URL that a workload reads."""
    return train.data not in DATA_KEYWORDS and "://" not in train.data


def _unusable(name: str, error: OSError | FieldError) -> str:
    return error.message if isinstance(error, FieldError) else f"{shown(name)} is not a usable path: {error.strerror or error}"


def _directory(context: RuleContext, path: Path, name: str, expected: str, keywords: tuple[str, ...] = ()) -> Iterator[Finding]:
    try:
        directory = resolved(context.directory(path), name)
        exists, is_directory = directory.exists(), directory.is_dir()
    except (OSError, FieldError) as error:
        yield Finding(path, _unusable(name, error), expected, "name a directory")
        return
    if is_directory:
        return
    if exists:
        yield Finding(path, f"{shown(name)} is a file", expected, f"name the directory it is in, {directory.parent}")
        return
    siblings = [entry.name for entry in entries_of(directory.parent) if entry.is_dir()]
    meant = nearest(name, keywords) or next(
        (str(FilePath(name).parent / sibling) for sibling in [nearest(directory.name, siblings)] if sibling), None
    )
    resolved_text = f" (looked for {directory})" if str(directory) != name else ""
    yield Finding(
        path,
        f"the directory {shown(name)} does not exist{resolved_text}",
        expected,
        f"write {meant}" if meant else "create it, or name another",
    )


def kubernetes_labels(context: RuleContext) -> Iterator[Finding]:
    """Kubernetes accepts the labels, those of the node selector, and the keys of annotations."""
    section = context.spec.kubernetes
    fields = (
        ("node_selector", section.node_selector, names.check_label_key, names.check_label_value),
        ("labels", section.labels, names.check_user_label_key, names.check_label_value),
        ("annotations", section.annotations, names.check_user_label_key, None),
    )
    for field, entries, check_key, check_value in fields:
        for key, value in entries.items():
            path = ("kubernetes", field, key)
            try:
                check_key(key)
            except FieldError as error:
                yield Finding(path, error.message, error.expected, error.remedy, on="key")
            try:
                if check_value:
                    check_value(value)
            except FieldError as error:
                yield Finding(path, error.message, error.expected, error.remedy)


def sidecars_are_native(context: RuleContext) -> Iterator[Finding]:
    """The oldest Kubernetes version that the run must work on has native sidecars, which end with their task."""
    version = context.spec.kubernetes.version
    sidecar_paths = [path for path, _ in containers_of(context.spec) if path[-2] == "sidecars"]
    if version is not None and sidecar_paths and parse_version(version) < SIDECARS_SINCE:
        message = f"Kubernetes {version} does not end sidecars with their task, and there are `{path_text(sidecar_paths[0][:-1])}`"
        minimum = ".".join(map(str, SIDECARS_SINCE))
        yield Finding(
            ("kubernetes", "version"),
            message,
            f'"{minimum}" or newer',
            f'write "{minimum}", on a cluster of that version or newer; or remove the sidecars',
        )


def attendant_has_image(context: RuleContext) -> Iterator[Finding]:
    """The attendant's image contains its program; an image for a user's own program may lack it."""
    spec, attendant = context.spec, context.spec.kubernetes.attendant
    if attendant is not None and attendant.image is None and spec.image is not None and spec.train is None:
        message = f"`image`, {shown(spec.image)}, is for a `command`, and may lack the attendant's program"
        remedy = "write `attendant: {image: ...}` with an image that the nodes have or can pull; `launcher image build` builds it"
        yield Finding(("kubernetes", "attendant"), message, "`attendant.image`, an image with the trainer", remedy)


def notify_names_a_channel(context: RuleContext) -> Iterator[Finding]:
    """`notify` names at least one channel."""
    notify = context.spec.notify
    if notify is not None and notify.command is None and notify.webhook is None:
        remedy = "write `notify: {command: [./tell.sh]}` or `notify: {webhook: {secret: my-webhook}}`, or remove `notify`"
        yield Finding(("notify",), "`notify` names no channel", "`command`, `webhook`, or both", remedy, on="key")


def notify_program_exists(context: RuleContext) -> Iterator[Finding]:
    """The program that gets messages has a name, and exists if the name is a path."""
    if context.spec.notify is None or context.spec.notify.command is None:
        return
    path, program = ("notify", "command", 0), context.spec.notify.command[0]
    expected = "a program, such as mail, or the path of one"
    if not program.strip():
        yield Finding(path, "the command starts with an empty word", expected, "name the program")
    elif "/" in program:
        try:
            file = resolved(context.directory(path), program)
            exists = file.is_file()
        except (OSError, FieldError) as error:
            yield Finding(path, _unusable(program, error), expected, "name a file")
            return
        if not exists:
            yield Finding(path, f"there is no file {shown(program)} (looked for {file})", expected, "write it, or name another")


def other_paths_are_usable(context: RuleContext) -> Iterator[Finding]:
    """`env_file` and the directories of volumes are usable paths; they need not exist yet."""
    volumes = ((("volumes", index, "path"), volume.path) for index, volume in enumerate(context.spec.volumes))
    for path, name in ((("env_file",), context.spec.env_file), *volumes):
        if name is None:
            continue
        try:
            resolved(context.directory(path), name)
        except FieldError as error:
            yield Finding(path, error.message, "a path", "write an absolute path, or one relative to the spec")


def mount_one_has_single_leader(context: RuleContext) -> Iterator[Finding]:
    """With `mount: one` the leader is the only task of its role: the pods of one role are alike."""
    spec = context.spec
    count = leading_role(spec).replicas
    if spec.storage is not None and spec.storage.mount == "one" and count > 1:
        message = f"`mount: one` needs a leader that is the only task of its role; the leader is worker-0 of {count} workers"
        remedy = "add `chief: {}` to `roles`, so that the chief mounts the volume, or write `mount: all`"
        yield Finding(("storage", "mount"), message, "a chief, or `all`", remedy)


# The paths that must be valid, including the keys directly inside them -> the rule.
RULES: tuple[tuple[tuple[Path, ...], Rule], ...] = (
    ((("strategy",), ("roles",)), roles_fit_strategy),
    ((), one_chief_and_evaluator),
    ((), gpu_type_with_gpus),
    ((("strategy",), ("roles", "chief", "gpus"), ("roles", "worker", "gpus")), gpus_for_all_that_exchange_gradients),
    ((), no_empty_section),
    ((), program_rules.train_or_command),
    ((), program_rules.role_keys_fit_train),
    ((("success",),), program_rules.restart_fits),
    ((), program_rules.command_names_program),
    ((("success",),), program_rules.success_of_command),
    ((("supervise",),), program_rules.supervise_is_for_a_command),
    ((("train", "workload"),), workload_exists),
    ((("train", "workload"), ("train", "params")), params_fit_workload),
    ((("train", "workload"), ("strategy",)), workload_fits_strategy),
    ((("train", "sync"), ("strategy",)), sync_is_possible),
    ((("train",), ("strategy",)), settings_fit),
    ((("train", "workload"), ("train", "evaluate"), ("train", "early_stopping"), ("roles", "evaluator")), early_stopping_has_evaluations),
    ((("train", "sync"), ("roles", "worker", "replicas")), enough_workers),
    ((("train", "workload"), ("train", "checkpoint"), ("roles", "evaluator")), evaluator_has_work),
    ((("train", "export"),), export_metric_has_direction),
    ((("limits", "deadline"), ("limits", "start_timeout")), deadline_after_start),
    ((), program_rules.env_names),
    ((("env",), ("env_file",), ("roles",), ("notify", "webhook")), program_rules.env_file_has_a_use),
    ((), kubernetes_labels),
    ((("tf_config",), ("roles",)), program_rules.master_fits_program),
    ((), container_rules.volumes_are_unique),
    ((), container_rules.kubernetes_volumes_have_source),
    ((), container_rules.container_names_are_unique),
    ((("volumes",), ("kubernetes",)), container_rules.containers_are_usable),
    ((("security",),), container_rules.mount_paths_are_unique),
    ((("volumes",), ("kubernetes",), ("init_containers",), ("sidecars",), ("roles",)), container_rules.volumes_are_mounted),
    ((("kubernetes", "version"),), sidecars_are_native),
    ((("image",), ("kubernetes", "attendant")), attendant_has_image),
    ((("roles",), ("storage", "mount")), mount_one_has_single_leader),
    ((("notify",), ("notify", "command"), ("notify", "webhook")), notify_names_a_channel),
    ((("notify", "command"),), notify_program_exists),
    ((("code",),), code_exists),
    ((), working_dir_exists),
    ((("code",), ("train", "workload"), ("strategy",), ("env",)), code_rules.workload_is_defined),
    ((("code",), ("train", "workload"), ("env",)), code_rules.code_is_set),
    ((("code",), ("command",)), code_rules.program_files_exist),
    ((("train", "data"),), data_exists),
    ((), other_paths_are_usable),
)


def check(context: RuleContext) -> list[Finding]:
    """Return the findings of every rule that can run."""
    return [finding for needs, rule in RULES if all(map(context.is_valid, needs)) for finding in rule(context)]
