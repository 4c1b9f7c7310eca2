"""Names that are found in a module without importing it, and modules that are accepted. tests/invalid has cases for the problems."""

from pathlib import Path

import pytest

from launcher.errors import SpecError
from launcher.spec.code_rules import parse
from launcher.spec.loader import load, run_name
from tests.golden_messages import Golden

DATA = "def train_data(): ...\ndef eval_data(): ...\n"


def check(directory: Path, source: str | None, workload: str = "mine:model", fields: str = "") -> list[str]:
    """Return the messages about a spec whose code is one module."""
    (directory / "code").mkdir()
    if source is not None:
        (directory / "code" / "mine.py").write_text(source)
    file = directory / "cluster.yaml"
    file.write_text(f"version: 1\nname: mine\ncode: code\n{fields}train: {{workload: '{workload}'}}\n")
    try:
        load(file)
    except SpecError as error:
        return [problem.message for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "source",
    [
        "class model: ...",
        "class A: ...\nmodel = A",
        "from elsewhere import model",
        "from elsewhere import thing as model",
        "import elsewhere as model",
        "if True:\n    from a import model\nelse:\n    from b import model",
        "try:\n    from a import model\nexcept ImportError:\n    model = None",
        "first, (model, *rest) = make()",
        "if (model := make()): pass",
        "with make() as model: pass",
        "def fill():\n    global model\n    model = 1",
        "from elsewhere import *",
        "exec(text)",
        "globals()['model'] = 1",
        "import sys\nsetattr(sys.modules[__name__], 'model', 1)",
        "def __getattr__(name): ...",
        "@wrapped\ndef model(): ...",
        f"{DATA}def model(): ...",
        f"{DATA}model = make()\nmodel.compile()",
        "from data import train_data, eval_data\ndef model(): ...",
        "def model(): ...\nfrom data import *",
        "class model: ...\npattern = '\\d'",  # Python warns of it
        f"model = {'-' * 100_000}1",
        f"model = {'+'.join('1' * 20_000)}",
    ],
    ids=lambda source: source[:80],
)
def test_names_that_exist_or_may_exist_are_no_problem(source: str, tmp_path: Path) -> None:
    assert check(tmp_path, source) == []


@pytest.mark.parametrize(
    "source, message",
    [
        ("def other(): ...", 'mine.py has no "model"'),
        ("def other():\n    model = 1\nclass A:\n    model = 2", 'mine.py has no "model"'),
        (f"{DATA}def model(: ...", "mine.py, line 3, is not valid Python: invalid syntax"),
        ("def model(): ...", 'mine.py has no train_data and no eval_data, which "model" is trained with'),
        ("def train_data(): ...\nmodel = make()\nmodel.compile()", 'mine.py has no eval_data, which "model" is trained with'),
        (None, "there is no module mine: neither mine.py nor mine/ is in"),
    ],
)
def test_missing_names_are_reported(source: str | None, message: str, tmp_path: Path) -> None:
    [reported] = check(tmp_path, source)
    assert reported.startswith(message)


@pytest.mark.parametrize("fields", ["image: registry.example.com/mine:1\n", "env: {PYTHONPATH: /opt/mine}\n"])
def test_a_missing_module_may_be_in_another_image_or_directory(fields: str, tmp_path: Path) -> None:
    assert check(tmp_path, None, fields=fields) == []


def test_a_program_with_manual_placement_needs_no_data_nor_does_an_installed_package(tmp_path: Path) -> None:
    assert check(tmp_path, "def model(cluster): ...", fields="strategy: manual\nroles: {chief: {}, worker: {}}\n") == []
    (tmp_path / "other").mkdir()
    assert check(tmp_path / "other", None, workload="json.decoder:JSONDecoder") == []


def test_a_module_beside_the_spec_is_code_only_if_the_spec_names_it(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "beside_it.py").write_text(f"{DATA}def model(): ...")
    file = tmp_path / "cluster.yaml"
    file.write_text("version: 1\nname: mine\ntrain: {workload: 'beside_it:model'}\n")
    with pytest.raises(SpecError) as caught:
        load(file)
    [problem] = caught.value.problems
    golden(problem.message)
    assert problem.remedy == "add `code: .`"
    file.write_text(f"{file.read_text()}code: .\n")
    assert load(file).code == str(tmp_path)


def test_a_module_is_parsed_and_never_run(tmp_path: Path) -> None:
    assert check(tmp_path, f"raise SystemExit\n{DATA}def model(): ...") == []
    assert parse(b"\xef\xbb\xbfx = 1", "bom.py").names == {"x"}


def test_the_name_of_a_run_is_read_even_if_its_code_is_invalid(tmp_path: Path) -> None:
    assert check(tmp_path, "def model(:")
    assert run_name(tmp_path / "cluster.yaml") == "mine"
    (tmp_path / "cluster.yaml").write_text("version: 1\nname: Not_A_Name\n")
    with pytest.raises(SpecError):
        run_name(tmp_path / "cluster.yaml")


def test_the_problem_of_a_binary_file_names_no_line(tmp_path: Path) -> None:
    assert not [message for message in check(tmp_path, "class model: ...\0\n") if "line" in message]
