"""The committed renderings of the examples; `python -m launcher.render.golden --write` writes them."""

import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.plan.spec_file import plan_file
from launcher.render.targets import RENDER_TARGETS, RenderSource

ROOT = Path(__file__).parents[2]
# Target -> the directory with a file for each example, or with a directory for each if the target is a directory.
DIRECTORIES = {name: target.examples for name, target in RENDER_TARGETS.items() if target.examples}


def files() -> Iterator[tuple[Path, str]]:
    """Yield each committed file with the text that it should have."""
    for name, directory in DIRECTORIES.items():
        target = RENDER_TARGETS[name]
        for example in sorted((ROOT / "examples").glob("*.yaml")):
            spec, plan = plan_file(example, [], target.plan_target, ROOT)
            source = RenderSource(spec, plan, ROOT / directory, f"launcher render {example.relative_to(ROOT)} --to {name}")
            if target.directory:
                for file, text in target.files(source).items():
                    yield ROOT / directory / example.stem / file, text
            else:
                yield ROOT / directory / example.name, target.render(source)


def main(arguments: list[str]) -> int:
    """With --write, write the files and remove those without an example; else list them."""
    expected = dict(files())
    for path, text in expected.items():
        if arguments == ["--write"]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            print(path.relative_to(ROOT))
    for directory in DIRECTORIES.values():
        for path in (ROOT / directory).rglob("*.yaml"):
            if arguments == ["--write"] and path not in expected:
                path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
