"""The parts of starting and cleaning up that test_parent.py leaves out."""

from pathlib import Path

from trainer.process_group import missing_program


def test_missing_program_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("")
    assert missing_program(["sh", "-c", "true"]) is None
    assert "was not found" in (missing_program(["no-such-program"]) or "")
    assert "is not executable" in (missing_program([str(script)]) or "")
