"""Rules between fields, and between the spec and the files beside it.

Each rule is a function from a RuleContext to findings. RULES names what each needs to know: a rule runs when all of
that is valid, whatever is wrong elsewhere, so that one pass finds everything.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath

from pydantic import ValidationError

from launcher.spec import code_rules, container_rules, messages, names, program_rules, quantities
from launcher.spec.kubernetes import SIDECARS_SINCE, parse_version
from launcher.spec.problems import FieldError, Finding, Path, all_of, any_of, nearest, path_text, shown
from launcher.spec.role_programs import containers_of, leading_role, roles_of, volumes_of
from launcher.spec.rule_context import RuleContext, resolved
from trainer.settings import Train, direction
from trainer.settings_rules import conflicts
from trainer.strategies import STRATEGIES, TRAINING
from trainer.workloads import catalog

# Plain words, so that the JSON Schema can say it too.
_WORD = "[A-Za-z_][A-Za-z0-9_]*"
CLASS_PATTERN = rf"^{_WORD}(\.{_WORD})*:{_WORD}(\.{_WORD})*$"
_CLASS = re.compile(rf"{CLASS_PATTERN[:-1]}\Z")
_DOTTED = re.compile(rf"({_WORD}(?:\.{_WORD})*)[.:/]+([A-Z][A-Za-z0-9_]*)\Z")
DATA_WORDS = ("synthetic", "download")


Rule = Callable[[RuleContext], Iterator[Finding]]


@dataclass(frozen=True)
class Shape:
    """The roles of a strategy."""

    mandatory: tuple[str, ...]
    optional: tuple[str, ...]


SHAPES: dict[str, Shape] = {name: Shape(kind.mandatory, kind.optional) for name, kind in STRATEGIES.items()}
# A program may have its first worker lead, as those of TensorFlow 1 do.
SHAPES_OF_A_COMMAND = {**SHAPES, "parameter_server": Shape(("worker", "ps"), ("chief", "evaluator"))}
_ONLY_ONE = {"chief": "leave `replicas` out; add workers for more computing power", "evaluator": "leave `replicas` out"}


def roles_fit_strategy(subject: RuleContext) -> Iterator[Finding]:
    """The strategy has every role it needs, and no other."""
    strategy, present = subject.spec.strategy, roles_of(subject.spec)
    shape = (SHAPES_OF_A_COMMAND if program_rules.runs_a_program(subject) else SHAPES)[strategy]
    expected = f"{all_of(shape.mandatory)}; {all_of(shape.optional)} if you like"
    # Without `roles` in the file, the strategy is the line to look at.
    location = None if ("roles",) in subject.document.sources else subject.document.location(("strategy",))
    for role in shape.mandatory:
        if role not in present:
            message = f"strategy {strategy} needs a {role}, and there is none"
            yield Finding(("roles", role), message, expected, f"add `{role}: {{}}` to `roles`", location=location)
    for role in present:
        if role not in shape.mandatory + shape.optional:
            fitting = any_of(name for name, other in SHAPES.items() if role in other.mandatory + other.optional)
            message = f"strategy {strategy} has no {role}"
            yield Finding(("roles", role), message, expected, f"remove `{role}`, or set `strategy` to {fitting}", on="key")


def only_one(subject: RuleContext) -> Iterator[Finding]:
    """There is one chief and one evaluator."""
    for role, remedy in _ONLY_ONE.items():
        count = getattr(subject.spec.roles, role).replicas if getattr(subject.spec.roles, role) else 1
        if count > 1:
            yield Finding(("roles", role, "replicas"), f"{count} {role}s, but a cluster has one", "1", remedy)


def gpu_type_with_gpus(subject: RuleContext) -> Iterator[Finding]:
    """A GPU's type makes sense with GPUs only."""
    for name, role in roles_of(subject.spec).items():
        if role.gpu_type is not None and role.gpus == 0 and subject.known(("roles", name, "gpus")):
            message = f"a type of GPU is given, {shown(role.gpu_type)}, but no number of GPUs"
            path = ("roles", name, "gpu_type")
            yield Finding(path, message, "`gpus` of 1 or more beside it", "add `gpus: 1`, or remove `gpu_type`", on="key")


def gpus_for_all_that_exchange_gradients(subject: RuleContext) -> Iterator[Finding]:
    """Tasks of an all-reduce all train on GPUs, or all on CPUs: gradients travel in one way. See trainer/engine/collectives/all_reduce.py."""
    spec = subject.spec
    if not STRATEGIES[spec.strategy].all_reduces or spec.train is None or not (spec.roles.chief and spec.roles.worker):
        return
    having = {"chief": spec.roles.chief.gpus, "worker": spec.roles.worker.gpus}
    for role, other in (("chief", "worker"), ("worker", "chief")):
        if having[other] and not having[role]:
            message = f"the {role} has no GPU, and the {other} has: their gradients cannot be put together"
            remedy = f"write `gpus: {having[other]}` for the {role}, too, or remove it from the {other}"
            yield Finding(("roles", role), message, "`gpus` for chief and worker, or for neither", remedy, on="key")


def no_empty_section(subject: RuleContext) -> Iterator[Finding]:
    """`worker:` with nothing after it is neither a worker with defaults nor clearly none."""
    for path in (*(("roles", role) for role in ("chief", "worker", "ps", "evaluator")), ("train",), ("train", "sync")):
        if subject.is_empty(path):
            remedy = f"write `{path[-1]}: {{}}` for the defaults, or remove it" if path[0] == "roles" else "fill it in, or remove it"
            yield Finding(path, f"`{path[-1]}` has no value", "a mapping", remedy, on="key")


def workload_exists(subject: RuleContext) -> Iterator[Finding]:
    """The workload is built in, or names a class as Python imports it."""
    if subject.spec.train is None:
        return
    try:
        check_workload(subject.spec.train.workload)
    except FieldError as error:
        yield Finding(("train", "workload"), error.message, error.expected, error.remedy)


def check_workload(workload: str) -> None:
    """Raise FieldError when this is neither a built-in workload nor package.module:Class."""
    if workload in catalog.CATALOG or _CLASS.match(workload):
        return
    if match := _DOTTED.match(workload):
        meant: str | None = f"{match[1]}:{match[2]}"
    else:
        meant = nearest(workload, catalog.CATALOG)
    kind = "is not package.module:Class" if ":" in workload else "is not a built-in workload"
    expected = f"{', '.join(catalog.CATALOG)}, or package.module:Class of your own code"
    raise FieldError(f"{shown(workload)} {kind}", expected, f"write {meant}" if meant else "choose one of them")


def params_fit_workload(subject: RuleContext) -> Iterator[Finding]:
    """The workload's own model accepts its parameters."""
    train = subject.spec.train
    entry = catalog.CATALOG.get(train.workload) if train else None
    if train is None or entry is None:
        return
    try:
        entry.params.model_validate(train.params)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        yield from messages.findings(errors, entry.params, subject.document.sources, ("train", "params"))


def workload_fits_strategy(subject: RuleContext) -> Iterator[Finding]:
    """The workload can be trained with the strategy."""
    train, strategy = subject.spec.train, subject.spec.strategy
    entry = catalog.CATALOG.get(train.workload) if train else None
    if train and entry and strategy not in entry.strategies:
        message = f"the workload {train.workload} does not run with strategy {strategy}"
        fitting = any_of(entry.strategies)
        yield Finding(("train", "workload"), message, f"strategy {fitting}", "change `strategy` or `workload`")


def sync_is_possible(subject: RuleContext) -> Iterator[Finding]:
    """Synchronous updates are an option of parameter servers."""
    train, strategy = subject.spec.train, subject.spec.strategy
    if train and train.sync and STRATEGIES[strategy].trains and not STRATEGIES[strategy].uses_servers:
        message = f"`sync` belongs to parameter_server; strategy {strategy} is always synchronous"
        yield Finding(("train", "sync"), message, "strategy parameter_server", "remove `sync`", on="key")


def settings_fit(subject: RuleContext) -> Iterator[Finding]:
    """The train settings fit one another and the strategy; of a workload that does not run with it, no more is to say."""
    train, strategy = subject.spec.train, subject.spec.strategy
    entry = catalog.CATALOG.get(train.workload) if train else None
    for conflict in conflicts(train, strategy) if train and (entry is None or strategy in entry.strategies) else ():
        yield Finding(("train", *conflict.path), conflict.message, conflict.expected, conflict.remedy, on="key")


def early_stopping_has_evaluations(subject: RuleContext) -> Iterator[Finding]:
    """Early stopping needs evaluations."""
    train = subject.spec.train
    if subject.spec.roles.evaluator is not None or subject.spec.strategy not in TRAINING:
        return
    if train and train.early_stopping and not catalog.with_defaults(train, subject.spec.strategy).evaluate.every_steps:
        message = "early stopping without evaluations: `train.evaluate.every_steps` is 0"
        remedy = "set `train.evaluate.every_steps` to 500, for example"
        yield Finding(("train", "early_stopping"), message, "`train.evaluate.every_steps` of 1 or more", remedy, on="key")


def enough_workers(subject: RuleContext) -> Iterator[Finding]:
    """A synchronous step can get as many gradients as it waits for."""
    train, worker = subject.spec.train, subject.spec.roles.worker
    if train and train.sync and worker and train.sync.replicas_to_aggregate > worker.replicas:
        count = train.sync.replicas_to_aggregate
        message = f"a step waits for {count} gradients, but there are {worker.replicas} workers"
        remedy = f"write {worker.replicas}, or add workers"
        yield Finding(("train", "sync", "replicas_to_aggregate"), message, f"at most {worker.replicas}, the number of workers", remedy)


def evaluator_has_work(subject: RuleContext) -> Iterator[Finding]:
    """An evaluator evaluates checkpoints, whatever `train.evaluate.every_steps` says to a chief without one."""
    train = subject.spec.train
    if train is None or subject.spec.roles.evaluator is None or subject.spec.strategy not in TRAINING:
        return
    merged = catalog.with_defaults(train)
    if merged.checkpoint.every_steps is None and merged.checkpoint.every_seconds is None:
        message = "an evaluator without checkpoints to evaluate: none are saved before the end"
        expected = "`train.checkpoint.every_steps` or `train.checkpoint.every_seconds`"
        yield Finding(("roles", "evaluator"), message, expected, "set one of them, or remove the evaluator", on="key")


def best_is_known(subject: RuleContext) -> Iterator[Finding]:
    """It is known whether more or less of the exported model's metric is better."""
    export = subject.spec.train.export if subject.spec.train else None
    if export and export.metric and direction(export.metric, export.mode) is None:
        message = f"{shown(export.metric)} does not show whether more or less of it is better"
        yield Finding(("train", "export", "metric"), message, "`mode: max` or `mode: min` beside it", "add `mode: max`, if more is better")


def deadline_after_start(subject: RuleContext) -> Iterator[Finding]:
    """A run's deadline leaves time to start."""
    limits = subject.spec.limits
    if limits.deadline and quantities.parse_duration(limits.deadline) < quantities.parse_duration(limits.start_timeout):
        default = "" if ("limits", "start_timeout") in subject.document.sources else ", the default"
        message = f"the deadline {limits.deadline} is shorter than `limits.start_timeout`, {limits.start_timeout}{default}"
        remedy = f"raise the deadline, or set `start_timeout` to {limits.deadline} or less"
        yield Finding(("limits", "deadline"), message, f"{limits.start_timeout} or more", remedy)


def code_exists(subject: RuleContext) -> Iterator[Finding]:
    """The user's code is a directory."""
    if subject.spec.code is not None:
        yield from _directory(subject, ("code",), subject.spec.code, "a directory with your code")


def working_dir_exists(subject: RuleContext) -> Iterator[Finding]:
    """A role's `working_dir` is a path in its container, or a directory beside the spec."""
    for name, role in roles_of(subject.spec).items():
        path = ("roles", name, "working_dir")
        if role.working_dir is not None and not role.working_dir.startswith("/") and subject.known(path):
            yield from _directory(subject, path, role.working_dir, "a path in the container, which starts with /, or a directory in `code`")


def data_exists(subject: RuleContext) -> Iterator[Finding]:
    """The data set is made, downloaded, or in a directory."""
    train = subject.spec.train
    if train is not None and is_directory_name(train) and not container_rules.is_mounted(volumes_of(subject.spec), train.data):
        yield from _directory(subject, ("train", "data"), train.data, "synthetic, download, or a directory with the data set", DATA_WORDS)


def is_directory_name(train: Train) -> bool:
    """Return whether `data` names a directory of this machine: it may also be a word, or a URL that a workload reads."""
    return train.data not in DATA_WORDS and "://" not in train.data


def _unusable(name: str, error: OSError | FieldError) -> str:
    return error.message if isinstance(error, FieldError) else f"{shown(name)} is not a usable path: {error.strerror or error}"


def _directory(subject: RuleContext, path: Path, name: str, expected: str, words: tuple[str, ...] = ()) -> Iterator[Finding]:
    try:
        at = resolved(subject.directory(path), name)
        exists, is_directory = at.exists(), at.is_dir()
    except (OSError, FieldError) as error:
        yield Finding(path, _unusable(name, error), expected, "name a directory")
        return
    if is_directory:
        return
    if exists:
        yield Finding(path, f"{shown(name)} is a file", expected, f"name the directory it is in, {at.parent}")
        return
    siblings = [entry.name for entry in at.parent.iterdir() if entry.is_dir()] if at.parent.is_dir() else []
    meant = nearest(name, words) or next((str(FilePath(name).parent / near) for near in [nearest(at.name, siblings)] if near), None)
    tried = f" (looked for {at})" if str(at) != name else ""
    yield Finding(
        path,
        f"the directory {shown(name)} does not exist{tried}",
        expected,
        f"write {meant}" if meant else "make it, or name another",
    )


def kubernetes_labels(subject: RuleContext) -> Iterator[Finding]:
    """Labels, those of the node selector and the keys of annotations are such as Kubernetes takes."""
    section = subject.spec.kubernetes
    fields = (
        ("node_selector", section.node_selector, names.check_label_key, names.check_label_value),
        ("labels", section.labels, names.check_own_label_key, names.check_label_value),
        ("annotations", section.annotations, names.check_own_label_key, None),
    )
    for field, given, check_key, check_value in fields:
        for key, value in given.items():
            path = ("kubernetes", field, key)
            try:
                check_key(key)
            except FieldError as wrong:
                yield Finding(path, wrong.message, wrong.expected, wrong.remedy, on="key")
            try:
                if check_value:
                    check_value(value)
            except FieldError as wrong:
                yield Finding(path, wrong.message, wrong.expected, wrong.remedy)


def sidecars_are_native(subject: RuleContext) -> Iterator[Finding]:
    """The oldest Kubernetes that a run has to work on ends sidecars with their task."""
    version = subject.spec.kubernetes.version
    of_sidecars = [path for path, _ in containers_of(subject.spec) if path[-2] == "sidecars"]
    if version is not None and of_sidecars and parse_version(version) < SIDECARS_SINCE:
        message = f"Kubernetes {version} does not end sidecars with their task, and there are `{path_text(of_sidecars[0][:-1])}`"
        since = ".".join(map(str, SIDECARS_SINCE))
        yield Finding(
            ("kubernetes", "version"),
            message,
            f'"{since}" or newer',
            f'write "{since}", on a cluster that is so new; or remove the sidecars',
        )


def attendant_has_image(subject: RuleContext) -> Iterator[Finding]:
    """The attendant's image has its program: images for a user's own program need not."""
    spec, attendant = subject.spec, subject.spec.kubernetes.attendant
    if attendant is not None and attendant.image is None and spec.image is not None and spec.train is None:
        message = f"the attendant's program is not known to be in `image`, {shown(spec.image)}, which is for a `command`"
        remedy = "write `attendant: {image: ...}` with one that the nodes have or can pull; `launcher image build` makes it"
        yield Finding(("kubernetes", "attendant"), message, "an image of its own, one that has the trainer", remedy)


def notify_names_a_channel(subject: RuleContext) -> Iterator[Finding]:
    """A section that asks for messages says who gets them."""
    notify = subject.spec.notify
    if notify is not None and notify.command is None and notify.webhook is None:
        remedy = "write `notify: {command: [./tell.sh]}` or `notify: {webhook: {secret: my-webhook}}`, or remove `notify`"
        yield Finding(("notify",), "`notify` says nobody to tell", "`command`, `webhook`, or both", remedy, on="key")


def notify_program_is_there(subject: RuleContext) -> Iterator[Finding]:
    """The program that gets messages has a name, and is there where that is a path."""
    if subject.spec.notify is None or subject.spec.notify.command is None:
        return
    path, program = ("notify", "command", 0), subject.spec.notify.command[0]
    expected = "a program, such as mail, or the path of one"
    if not program.strip():
        yield Finding(path, "the command starts with an empty word", expected, "name the program")
    elif "/" in program:
        try:
            at = resolved(subject.directory(path), program)
            exists = at.is_file()
        except (OSError, FieldError) as error:
            yield Finding(path, _unusable(program, error), expected, "name a file")
            return
        if not exists:
            yield Finding(path, f"there is no file {shown(program)} (looked for {at})", expected, "write it, or name another")


def other_paths_are_usable(subject: RuleContext) -> Iterator[Finding]:
    """The file with values of secrets and the directories of volumes can be paths; they need not be there yet."""
    volumes = ((("volumes", index, "path"), volume.path) for index, volume in enumerate(subject.spec.volumes))
    for path, name in ((("env_file",), subject.spec.env_file), *volumes):
        if name is None:
            continue
        try:
            resolved(subject.directory(path), name)
        except FieldError as error:
            yield Finding(path, error.message, "a path", "write the path from / or from the spec's directory")


def one_mounts(subject: RuleContext) -> Iterator[Finding]:
    """One task can mount the run's volume where it is the only one of its role: pods of one role are alike."""
    spec = subject.spec
    count = leading_role(spec).replicas
    if spec.storage is not None and spec.storage.mount == "one" and count > 1:
        message = f"`mount: one` is for a leader that is alone in its role; worker-0 of {count} workers is the leader"
        remedy = "add `chief: {}` to `roles`, which then mounts the volume, or write `mount: all`"
        yield Finding(("storage", "mount"), message, "a chief, or `all`", remedy)


# The paths that must be valid, with the keys directly inside them -> the rule.
RULES: tuple[tuple[tuple[Path, ...], Rule], ...] = (
    ((("strategy",), ("roles",)), roles_fit_strategy),
    ((), only_one),
    ((), gpu_type_with_gpus),
    ((("strategy",), ("roles", "chief", "gpus"), ("roles", "worker", "gpus")), gpus_for_all_that_exchange_gradients),
    ((), no_empty_section),
    ((), program_rules.train_or_command),
    ((), program_rules.role_of_a_program),
    ((("success",),), program_rules.restart_fits),
    ((), program_rules.words_of_command),
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
    ((("train", "export"),), best_is_known),
    ((("limits", "deadline"), ("limits", "start_timeout")), deadline_after_start),
    ((), program_rules.env_names),
    ((("env",), ("env_file",), ("roles",), ("notify", "webhook")), program_rules.env_file_has_a_use),
    ((), kubernetes_labels),
    ((("tf_config",), ("roles",)), program_rules.master_is_a_program_s_chief),
    ((), container_rules.volumes_apart),
    ((), container_rules.volumes_of_kubernetes),
    ((), container_rules.containers_apart),
    ((("volumes",), ("kubernetes",)), container_rules.containers_run_something),
    ((("security",),), container_rules.mounts_apart),
    ((("volumes",), ("kubernetes",), ("init_containers",), ("sidecars",), ("roles",)), container_rules.volumes_are_mounted),
    ((("kubernetes", "version"),), sidecars_are_native),
    ((("image",), ("kubernetes", "attendant")), attendant_has_image),
    ((("roles",), ("storage", "mount")), one_mounts),
    ((("notify",), ("notify", "command"), ("notify", "webhook")), notify_names_a_channel),
    ((("notify", "command"),), notify_program_is_there),
    ((("code",),), code_exists),
    ((), working_dir_exists),
    ((("code",), ("train", "workload"), ("strategy",), ("env",)), code_rules.workload_is_there),
    ((("code",), ("train", "workload"), ("env",)), code_rules.code_is_given),
    ((("code",), ("command",)), code_rules.programs_are_there),
    ((("train", "data"),), data_exists),
    ((("env_file",), ("volumes",)), other_paths_are_usable),
)


def check(subject: RuleContext) -> list[Finding]:
    """Return what every rule that can run finds."""
    return [finding for needs, rule in RULES if all(map(subject.known, needs)) for finding in rule(subject)]
