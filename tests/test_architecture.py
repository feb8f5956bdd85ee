"""The layers hold: imports go down only, causes know no runtime, and only the command line prints."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "unlag"
LAYERS = (
    ("__main__",),
    ("cli",),
    ("api",),
    ("pipeline", "fixed_model"),
    ("report",),
    ("stages",),
    ("proof",),
    ("causes",),
    ("observe",),
    ("measure",),
    ("runtimes", "workloads", "demo"),
    ("rewrites",),
    ("model",),
    ("assets",),
    ("errors",),
)
"""From the top down. Parts on one line never import each other."""
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
LONGEST_FILE = 400
VAGUE_NAMES = {"utils", "common", "helpers", "manager", "misc", "base"}
HEAVY = {"onnx", "onnxruntime", "onnx_ir", "scipy", "numpy", "torch", "openvino", "rich", "typer", "msgspec"}

FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text("utf-8")) for path in FILES}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def only_for_types(tree: ast.Module) -> set[ast.AST]:
    """Nodes below ``if TYPE_CHECKING``: not imported when the program runs."""
    guarded: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            guarded.update(below for statement in node.body for below in ast.walk(statement))
    return guarded


def imports(path: Path, *, types: bool = True) -> set[str]:
    """Modules of unlag that a file imports, in functions too."""
    tree = TREES[path]
    skipped = set() if types else only_for_types(tree)
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if name in MODULES else node.module for name in names)
    return {name for name in found if name == "unlag" or name.startswith("unlag.")}


def part_of(module: str) -> str:
    """The first name below ``unlag``; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_down_only(path):
    own = part_of(module_of(path))
    if not own:
        return
    for module in imports(path):
        other = part_of(module)
        if other and other != own:
            assert LEVEL[own] < LEVEL[other], f"{module_of(path)} imports {module}"


def test_every_part_has_its_layer():
    parts = {part_of(module) for module in MODULES} - {""}
    assert parts <= set(LEVEL)


def test_no_module_imports_itself_in_a_circle():
    graph = {module: imports(path, types=False) - {module} for module, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {error.args[1]}")


def test_causes_know_no_runtime():
    names = {"onnxruntime", "openvino", "torch", "unlag.runtimes.onnxruntime", "unlag.runtimes.fake"}
    for path in (SOURCE / "causes").rglob("*.py"):
        everything = {
            alias.name for node in ast.walk(TREES[path]) if isinstance(node, ast.Import) for alias in node.names
        }
        everything |= {node.module or "" for node in ast.walk(TREES[path]) if isinstance(node, ast.ImportFrom)}
        assert not {name for name in everything if name in names or name.split(".")[0] in names}, path.name


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_only_the_command_line_prints(path):
    if part_of(module_of(path)) in {"cli", "__main__"}:
        return
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{path.name}:{node.lineno}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys":
            assert node.attr not in {"exit", "stderr"}, f"{path.name}:{node.lineno}"


def test_files_are_short_and_named_for_what_they_hold():
    for path in [*FILES, *(ROOT / "tests").rglob("*.py")]:
        assert path.stem not in VAGUE_NAMES, path
        assert len(path.read_text("utf-8").splitlines()) <= LONGEST_FILE, path


def test_tests_have_names_of_their_own():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(name.split('.')[0] for name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_importing_unlag_loads_nothing_heavy():
    assert not loaded_after("import unlag") & HEAVY


def test_the_names_of_unlag_are_all_there():
    loaded_after(
        "import unlag; [getattr(unlag, name) for name in unlag.__all__]; assert set(unlag.__all__) == set(dir(unlag))"
    )


@pytest.mark.parametrize(
    "module", ["unlag.errors", "unlag.model.variant", "unlag.measure.statistics", "unlag.causes.contract", "unlag.cli"]
)
def test_a_module_can_be_imported_alone(module):
    loaded_after(f"import {module}")
