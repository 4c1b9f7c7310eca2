"""`launcher image build`: the image that containers of a run start from."""

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import Json
from launcher.formats import decimal_size, duration

if TYPE_CHECKING:
    from launcher.image_build.build import BuildRequest
    from launcher.images import Image

EXAMPLES = (
    ("launcher image build", "the trainer image, for `up --on docker` and the Compose files"),
    ("launcher image build --gpu", "with the CUDA libraries"),
    ("launcher image build --push registry.example/team/trainer:1", "for nodes of a cluster, which pull it from a registry"),
    ("launcher image build --code ./src --push registry.example/team/train:1", "with your own code in it"),
    ("launcher image build --build-arg HTTPS_PROXY --ca-file company.pem", "behind a company's proxy"),
)
# Directories beside code that seldom belong in an image.
_LARGE_DIRECTORIES = (".git", ".venv", "venv", "runs", "node_modules")
_MIN_REPORTED = 0.1  # seconds; shorter steps get no line


class Action(StrEnum):
    """The subcommands of `image`."""

    BUILD = "build"


def image(
    action: Annotated[Action, typer.Argument(metavar="build", help="Build an image, in the Docker engine.", show_default=False)],
    *,
    gpu: Annotated[bool, typer.Option("--gpu", help="With the CUDA libraries.")] = False,
    code: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Put your code into it too, where every task can import it.", show_default=False)
    ] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="NAME", help="The image's name; by default the one that runs use.", show_default=False)
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="NAME", help="The image's name; push it to the registry in that name.", show_default=False)
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(metavar="OS/ARCH", help="The platform, such as linux/arm64; by default the engine's own.", show_default=False),
    ] = None,
    base_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="The image with Python to start from.", show_default=False)
    ] = None,
    build_arg: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]", help="An argument of the build, such as HTTPS_PROXY or PIP_INDEX_URL. May be given more than once."
        ),
    ] = None,
    pip_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="pip's configuration during the build; not left in the image.", show_default=False)
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates to trust during the build, in PEM format.", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show every line of the build.")] = False,
    as_json: Json = False,
) -> None:
    """Build the image that containers start from."""
    from launcher.errors import UsageError
    from launcher.image_build.build import BuildRequest

    del action  # there is one
    if tag is not None and push is not None:
        raise UsageError("--push and --tag both name the image", "leave out --tag")
    request = BuildRequest(
        gpu=gpu,
        code=code,
        tag=_image_name("--push", push) or _image_name("--tag", tag),
        platform=platform,
        base_image=_image_name("--base-image", base_image),
        build_args=tuple(build_arg or ()),
        pip_config=pip_config,
        ca_file=ca_file,
    )
    began = time.monotonic()
    built = _build(request, verbose=verbose)
    if push is not None:
        _push(push)
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps({"image": built.name, "id": built.id, "size": built.size, "seconds": round(seconds, 1), "labels": built.labels}))
        return
    print(
        f"{built.name} is {'built' if push is None else 'pushed'}: id {built.id.removeprefix('sha256:')[:12]}, {decimal_size(built.size)}, after {duration(seconds)}"
    )
    if code is None and push is not None:
        print(f"in the spec: `image: {built.name}`; in rendered files: TRAINER_IMAGE for Compose, `images` of kustomization.yaml")
    if code is not None:
        print(f"in the spec: `image: {built.name}`, and no `code`")


def _image_name(option: str, name: str | None) -> str | None:
    from launcher.errors import UsageError
    from launcher.spec.names import check_image
    from launcher.spec.problems import FieldError

    if name is None:
        return None
    try:
        return check_image(name)
    except FieldError as error:
        raise UsageError(f"{option}: {error.message}; expected {error.expected}", error.remedy) from None


def _build(request: "BuildRequest", *, verbose: bool) -> "Image":
    from rich.console import Console
    from rich.markup import escape

    from launcher.image_build.build import build, check
    from launcher.image_build.steps import Output, Step

    check(request)
    # Progress goes to stderr; stdout is for the result.
    console = Console(stderr=True, highlight=False)
    console.print(f"building {request.name} on {request.effective_base_image}", soft_wrap=True)
    if request.code is not None and (large := _large_directories(request.code)):
        console.print(
            f"note: the image will contain {', '.join(large)}; a .dockerignore in {request.code} can exclude them",
            soft_wrap=True,
            markup=False,
        )
    if verbose:
        return build(request, lambda _: None, on_line=lambda line: console.print(line, markup=False, soft_wrap=True))
    with console.status("connecting to the engine") as status:
        announced: set[str] = set()

        def on_progress(progress: Step | Output) -> None:
            if isinstance(progress, Output):
                status.update(escape(f"{progress.title}: {progress.text[:60]}"))
                if not console.is_terminal and progress.title not in announced:
                    announced.add(progress.title)
                    console.print(f"  {progress.title} ...")
            elif progress.seconds is None:
                status.update(progress.title)
            elif progress.seconds >= _MIN_REPORTED:
                console.print(f"  {progress.title}: {duration(progress.seconds)}")

        return build(request, on_progress)


def _push(name: str) -> None:
    from rich.console import Console

    from launcher.image_build.build import push

    console = Console(stderr=True, highlight=False)
    console.print(f"pushing {name}", soft_wrap=True)
    with console.status(f"pushing {name}"):
        push(name)


def _large_directories(code: Path) -> list[str]:
    if (code / ".dockerignore").exists():
        return []
    return [str(code / name) for name in _LARGE_DIRECTORIES if (code / name).is_dir()]
