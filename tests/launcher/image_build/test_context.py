"""The build context that is sent to the engine: the same from a checkout, an installed wheel and a plain `docker build`."""

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import launcher
from launcher import images
from launcher.image_build import context
from launcher.plan import container_paths

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / context.DOCKERFILE).read_text(encoding="utf-8")


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def test_the_context_has_the_packages_and_all_that_the_dockerfile_copies() -> None:
    entries = names(context.archive())
    assert set(context.FILES) < set(entries)
    assert {"trainer/task.py", "launcher/backend/kubernetes/attendant.py"} <= set(entries)
    assert not [name for name in entries if "__pycache__" in name or name.startswith("tests")]
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for source in line.split():
            assert source in entries or any(name.startswith(f"{source}/") for name in entries), source


def test_a_plain_docker_build_gets_the_same_files() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert allowed == (set(context.FILES) - {context.DOCKERFILE}) | set(context.PACKAGES)
    assert "*" in lines
    assert "**/__pycache__" in lines


def test_an_installed_wheel_sends_the_same_bytes_as_a_checkout(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")  # noqa: S202 - our own
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from launcher.image_build import context; import hashlib\n"
        "print(context.__file__, hashlib.sha256(context.archive()).hexdigest(), context.default_base_image())"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
    file, digest, base = result.stdout.split()
    assert file.startswith(str(tmp_path))
    assert digest == hashlib.sha256(context.archive()).hexdigest()
    assert base == context.default_base_image() == "python:3.11-slim-bookworm"


def test_the_dockerfile_has_the_launcher_s_version_user_and_paths() -> None:
    assert set(re.findall(r"^ARG VERSION=(\S+)", DOCKERFILE, re.MULTILINE)) == {launcher.__version__}
    assert set(re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)) == {f"{images.USER}:{images.USER}"}
    assert f"-o {images.USER} -g 0 {container_paths.CONTAINER_RUNS} " in DOCKERFILE
    assert f"WORKDIR {container_paths.CONTAINER_CODE}\n" in DOCKERFILE
    assert f"PYTHONPATH={container_paths.CONTAINER_CODE} " in DOCKERFILE


def test_the_images_have_the_versions_that_are_tested() -> None:
    def locked(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        return dict(re.findall(r"^([a-z0-9-]+)(==\S+)", text, re.MULTILINE))

    tested = locked("dev.txt")
    image = locked("image.txt")
    assert image.items() <= tested.items()
    assert not {"docker", "kubernetes", "typer"} & set(image)
    assert {"pydantic", "urllib3"} <= set(image)  # the attendant needs them
    assert locked("image-gpu.txt").keys() >= {"nvidia-cudnn-cu12", "tensorboard", "pydantic"}


def test_the_attendant_needs_no_package_that_the_images_lack() -> None:
    program = (
        "import sys\n"
        "for name in ('kubernetes', 'docker', 'typer'): sys.modules[name] = None\n"
        "import launcher.backend.kubernetes.attendant\n"
        "print(*sorted({'tensorflow', 'numpy', 'grpc'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout) == (0, "\n"), result.stderr
