"""What the README says can be typed, and CI types the same."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unlag
from unlag.cli import exit_codes
from unlag.cli.commands import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
CI = (ROOT / ".ci" / "run").read_text("utf-8")
COMMANDS = ("compare", "explain", "fix", "demo", "env", "causes", "report")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def help_of(command: str) -> str:
    return CliRunner().invoke(app, [command, "--help"]).output


def test_the_two_commands_are_there():
    run, test = (block.strip() for block in blocks("sh"))
    assert run.endswith("pip install . && unlag demo")
    assert "\n" not in run + test
    assert test == "pip install -e '.[test]' && pytest"


def test_ci_types_the_same_test_command():
    _, test = (block.strip() for block in blocks("sh"))
    assert [line.strip() for line in CI.splitlines()].count(test) == 1
    assert test in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_ci_is_a_script_that_stops_at_the_first_failure():
    assert "set -euo pipefail" in CI
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)
    for command in ("ruff check .", "ruff format --check .", "mypy"):
        assert f"\n{command}\n" in CI


def test_extras_that_are_installed_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "test" in project["optional-dependencies"]
    assert project["scripts"]["unlag"] == "unlag.cli:main"


def test_every_command_and_option_is_in_the_readme():
    for command in COMMANDS:
        assert f"`unlag {command}" in README
        for option in re.findall(r"(--[a-z][a-z-]+)", help_of(command)):
            if option not in {"--help", "--output", "--beside-article"}:
                assert f"`{option}" in README, f"{option} of {command}"


def test_every_option_in_the_readme_exists():
    helps = "".join(help_of(command) for command in COMMANDS)
    for option in set(re.findall(r"`(--[a-z][a-z-]+)", README)):
        assert option in helps


def test_exit_codes_are_those_of_the_program():
    codes = (
        exit_codes.FINE,
        exit_codes.LAGS,
        exit_codes.WRONG_USAGE,
        exit_codes.INCONCLUSIVE,
        exit_codes.OUR_FAULT,
    )
    assert codes == (0, 1, 2, 3, 4)
    for code in codes:
        assert f"\n| {code} | " in README


@pytest.mark.parametrize("block", blocks("python"))
def test_python_names_exist(block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "unlag":
            assert hasattr(unlag, node.attr)


def test_demo_output_has_its_place():
    assert README.index("<!-- demo-output -->") < README.index("<!-- /demo-output -->")


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_decisions_are_short():
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        assert re.match(r"\d{4}-[a-z0-9-]+\.md$", page.name)
        assert len(page.read_text("utf-8").splitlines()) <= 30, page.name
