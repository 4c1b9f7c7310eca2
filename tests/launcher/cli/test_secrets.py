"""The env file, which has values of secrets outside Kubernetes: how its lines are read, and that no message shows one."""

import os
from pathlib import Path

import pytest

from launcher.cli.secrets import read, supply
from launcher.errors import UsageError
from launcher.plan.planner import plan
from launcher.spec.models import ClusterSpec


@pytest.mark.parametrize(
    "line, value",
    [
        ("A=b", "b"),
        ("  export A = b c \t", "b c"),
        ("A=", ""),
        ("A=b # a comment", "b"),
        ("A=#b#c", "#b#c"),
        ("A=$b=${c}", "$b=${c}"),
        ("A='b # $c' # d", "b # $c"),
        (r'A="b\n\"c\" \\ \$d"', 'b\n"c" \\ $d'),
        ("A=b'c'", "b'c'"),
        ("A=b\r", "b"),
        ("A='b'\r", "b"),
        ("A=b\u2028c\fd", "b\u2028c\fd"),
    ],
)
def test_a_line_is_read_as_compose_reads_it(line: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "team.env").write_text(f"# A=no\nA=first\n\n{line}\n")
    assert read(tmp_path / "team.env") == {"A": value}


@pytest.mark.parametrize("line", ["hunter2", "1A=hunter2", "A-B=hunter2", "A='hunter2", 'A="hunter2" more', "=hunter2", "A=hunter2\0"])
def test_an_invalid_line_is_refused_and_not_shown(line: str, tmp_path: Path) -> None:
    (tmp_path / "team.env").write_text(f"B=c\n{line}\n")
    with pytest.raises(UsageError, match=r"team\.env:2: ") as refused:
        read(tmp_path / "team.env")
    assert "hunter2" not in refused.value.message + refused.value.remedy


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "team.env").write_text("A=b", encoding="utf-8-sig")
    assert read(tmp_path / "team.env") == {"A": "b"}


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "team.env").write_bytes(b"A=\xff")
    with pytest.raises(UsageError, match="it is not UTF-8"):
        read(tmp_path / "team.env")


def test_the_environment_overrides_the_file_of_which_only_named_secrets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "team.env").write_text("HERE=no\nTHERE=file\nOTHER=not named\n")
    env = {name: {"secret": "team", "key": "token"} for name in ("HERE", "THERE")}
    document = {"version": 1, "name": "toy", "command": ["true"], "image": "mine:1", "env": env, "env_file": str(tmp_path / "team.env")}
    spec = ClusterSpec.model_validate(document)
    monkeypatch.setattr(os, "environ", {"HERE": "environment"})
    supply(plan(spec, "docker", run_dir="/runs/toy"), spec)
    assert os.environ == {"HERE": "environment", "THERE": "file"}
