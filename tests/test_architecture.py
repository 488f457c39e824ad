"""The house rules that a machine can hold: floors, cycles, sizes, docstrings, names that must not be used."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = "jaxrl_agent"

# From the ground up. A module imports from lower floors and from its own package; the ground floor's files see one
# another.
FLOORS = (
    {"types", "errors", "config", "run_dir"},
    {"statistics", "parallel", "progress", "interrupts", "tensorboard", "row_files"},
    {"models", "envs", "sandbox", "algorithms", "data"},
    {"tasks", "methods"},
    {"rollout"},
    {"learner"},
    {"checkpoint"},
    {"assemble"},  # a config's names become objects
    {"preflight"},  # what is refused before anything is built
    {"evaluation"},
    {"train", "convert", "analysis"},
    {"report", "sweeps", "planning", "audit", "benchmark", "command_line"},
    {"testing"},  # for tests alone
)
# Rooms with fewer doors than their floor would allow: what they may import of the package.
NARROW = {
    "algorithms": {"types", "errors", "statistics"},
    "report": {"run_dir", "statistics", "errors"},
    "evaluation.pass_at_kt": {"errors", "statistics"},
}
# Analyses and reports read files: they reach these neither themselves nor through others.
READERS = ("analysis", "report")
RUNNING = {"models", "rollout", "learner"}

FORBIDDEN = (
    "flax.nnx",
    "flax.linen.nnx",
    "jax.experimental.shard_map",
    "jax.experimental.pjit",
    "jax.experimental.maps",
    "jax.tree_map",
    "jax.tree_util.tree_map",
    "jax.random.PRNGKey",
    "jax.sharding.use_mesh",
    "jax.interpreters.pxla.thread_resources",
    "jax.interpreters.xla",
    "numpy.random.seed",
)
FORBIDDEN_ANYWHERE = {"check_rep", "thread_resources", "use_mesh", "nnx"}

# Run by another interpreter, one beside the other in a folder of their own: the package never imports them.
INSIDE = f"{PACKAGE}.sandbox.inside."

MAX_FILE, MAX_FUNCTION, MAX_MEDIAN, MAX_MAIN = 400, 80, 15, 60


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (PROJECT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(PROJECT))


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of the whole package."""
    names = {}
    for path in python_files(PACKAGE):
        parts = path.relative_to(PROJECT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def resolved_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every imported thing as (local name, dotted origin), wherever the statement stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname or alias.name.split(".")[0]), alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield (alias.asname or alias.name), f"{node.module}.{alias.name}"


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """Modules of the package that a module imports."""
    found = set()
    for _, origin in resolved_imports(parse(modules()[module])):
        while origin.startswith(PACKAGE) and origin not in modules():
            origin = origin.rpartition(".")[0]
        if origin.startswith(PACKAGE) and origin != module:
            found.add(origin)
    return frozenset(found)


def room(module: str) -> str:
    """The part of the name that has a floor: `jaxrl_agent.models.qwen3` -> `models`; the package itself -> ''."""
    return module.split(".")[1] if "." in module else ""


def reached_from(module: str) -> set[str]:
    """Modules that importing `module` loads, with the packages on the way."""
    seen, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += [*imports_of(name), *([name.rpartition(".")[0]] if "." in name else [])]
    return seen


def used_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Dotted names that a file imports or writes, with import aliases undone, and keywords of its calls."""
    # `import a.b` binds `a` to a, not to a.b.
    origins = {name: name if origin.startswith(f"{name}.") else origin for name, origin in resolved_imports(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, origin) for _, origin in resolved_imports(node))
        elif isinstance(node, ast.Attribute | ast.Name):
            parts, root = [], node
            while isinstance(root, ast.Attribute):
                parts.insert(0, root.attr)
                root = root.value
            if isinstance(root, ast.Name):
                yield node.lineno, ".".join([origins.get(root.id, root.id), *parts])
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, f"({keyword.arg}=)") for keyword in node.keywords if keyword.arg)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines_of(function: ast.AST) -> int:
    return function.end_lineno - function.lineno + 1


def code_lines_of(function: ast.AST) -> int:
    """Lines without the docstring, which is welcome to be long."""
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None
    return lines_of(function) - (lines_of(first) if documented else 0)


# ---- floors


def test_imports_are_absolute():
    for path in python_files(PACKAGE, "launch", "configs"):
        levels = [node.level for node in ast.walk(parse(path)) if isinstance(node, ast.ImportFrom)]
        assert not any(levels), relative(path)


def test_every_room_has_a_floor():
    assert {room(module) for module in modules()} - {""} <= set().union(*FLOORS)


@pytest.mark.parametrize("module", sorted(modules()))
def test_modules_import_from_lower_floors_only(module):
    here = room(module)
    height = next((height for height, rooms in enumerate(FLOORS) if here in rooms), 0)
    allowed = FLOORS[0].union({here}, *FLOORS[:height])
    for prefix, narrow in NARROW.items():
        if f"{module}.".startswith(f"{PACKAGE}.{prefix}."):
            allowed = narrow | {here}
    if module == PACKAGE or module == f"{PACKAGE}.evaluation.pass_at_kt":
        allowed -= {here}
    assert {room(name) for name in imports_of(module)} - {""} <= allowed


@pytest.mark.parametrize("reader", READERS)
def test_readers_never_reach_what_runs_models(reader):
    for module in (name for name in modules() if room(name) == reader):
        assert not {name for name in reached_from(module) if room(name) in RUNNING}, module


def test_no_import_goes_in_a_circle():
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module in done:
            return
        for name in imports_of(module):
            visit(name, (*trail, module))
        done.add(module)

    for module in modules():
        visit(module, ())


# ---- sizes


def test_no_file_is_longer_than_400_lines():
    lengths = {
        relative(path): path.read_text().count("\n") for path in python_files(PACKAGE, "launch", "configs", "tests")
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FILE} == {}


def test_no_function_is_longer_than_80_lines_and_half_of_them_are_short():
    files = python_files(PACKAGE, "launch", "configs")
    lengths = {
        f"{relative(path)}:{node.lineno} {node.name}": lines_of(node) for path in files for node in functions_of(path)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FUNCTION} == {}
    assert statistics.median(code_lines_of(node) for path in files for node in functions_of(path)) <= MAX_MEDIAN


def test_mains_hold_no_logic():
    lengths = {path.name: path.read_text().count("\n") for path in (PROJECT / "launch").glob("*.py")}
    assert {name: count for name, count in lengths.items() if count > MAX_MAIN} == {}


# ---- docstrings


def undocumented(path: Path) -> Iterator[str]:
    """Public modules, classes and functions without a docstring; a method that fills in a base's may inherit its."""
    tree = parse(path)
    if tree.body and not ast.get_docstring(tree):
        yield f"{relative(path)}: module"
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield f"{relative(path)}:{node.lineno} {node.name}"
        if isinstance(node, ast.ClassDef) and not node.bases:
            for method in node.body:
                if (
                    isinstance(method, ast.FunctionDef)
                    and not method.name.startswith("_")
                    and not ast.get_docstring(method)
                ):
                    yield f"{relative(path)}:{method.lineno} {node.name}.{method.name}"


def test_everything_public_has_a_docstring():
    assert [name for path in python_files(PACKAGE) for name in undocumented(path)] == []


# ---- names that must not be used


def forbidden_uses(source: str | Path) -> list[str]:
    """Uses of names that are deprecated, or that the project has decided against."""
    tree = ast.parse(source) if isinstance(source, str) else parse(source)
    found = []
    for line, name in used_names(tree):
        parts = set(re.findall(r"\w+", name))
        if any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN) or parts & FORBIDDEN_ANYWHERE:
            found.append(f"{line}: {name}")
        elif name == "hash":
            found.append(f"{line}: hash() of a string differs from process to process")
    return found


def test_no_file_uses_a_forbidden_name():
    files = python_files(PACKAGE, "launch", "configs")
    assert {relative(path): uses for path in files if (uses := forbidden_uses(path))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import flax.nnx",
        "from flax import nnx",
        "import flax\nflax.nnx.Linear",
        "from jax.experimental.shard_map import shard_map",
        "from jax.experimental import pjit as p",
        "import jax.experimental as je\nje.shard_map.shard_map(f)",
        "import jax as j\nj.tree_map(f, x)",
        "from jax import random\nrandom.PRNGKey(0)",
        "from jax import shard_map\nshard_map(f, check_rep=False)",
        "import jax\njax.sharding.use_mesh(m)",
        "import numpy as np\nnp.random.seed(0)",
        "seed = hash('map')",
    ],
)
def test_the_search_for_forbidden_names_sees_through_aliases(source):
    assert forbidden_uses(source)


def test_the_search_for_forbidden_names_lets_todays_names_pass():
    assert not forbidden_uses(
        "import jax\nimport numpy as np\nfrom jax import random\nfrom jax.tree_util import tree_flatten\n"
        "jax.tree.map(f, x)\nrandom.key(0)\njax.shard_map(f, check_vma=False)\njax.set_mesh(m)\n"
        "np.random.default_rng(0)\nself.hash(x)"
    )


IMPORT_ALL = """
import importlib, sys, warnings
import flax
before = {name for name in sys.modules if name.startswith("flax.nnx")}
warnings.filterwarnings("error", category=DeprecationWarning, module="jaxrl_agent")
for name in sys.argv[1:]:
    importlib.import_module(name)
added = {name for name in sys.modules if name.startswith("flax.nnx")} - before
assert not added, f"imports of the package added {sorted(added)}"
assert "torch" not in sys.modules, "the package imports torch"
"""


def run_fresh(code: str, *arguments: str) -> None:
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_importing_every_module_loads_no_nnx_and_no_torch():
    run_fresh(IMPORT_ALL, *sorted(name for name in modules() if not name.startswith(INSIDE)))


def test_what_runs_in_a_sandbox_needs_nothing_but_the_standard_library():
    names = sorted(name for name in modules() if name.startswith(INSIDE))
    assert len(names) > 5
    beside = {name.rpartition(".")[2] for name in names}
    for name in names:
        origins = {origin.split(".")[0] for _, origin in resolved_imports(parse(modules()[name]))}
        assert origins <= set(sys.stdlib_module_names) | beside | {"__future__"}, name


@pytest.mark.parametrize("reader", READERS)
def test_analyses_and_reports_are_made_without_jax(reader):
    names = sorted(name for name in modules() if room(name) == reader)
    run_fresh("import sys\nfor name in sys.argv[1:]: __import__(name)\nassert 'jax' not in sys.modules", *names)


def test_jax_imports_without_deprecation_warnings():
    run_fresh("import warnings; warnings.simplefilter('error', DeprecationWarning); import jax, jax.numpy")


# ---- README's picture


def listed_paths(readme: str) -> list[str]:
    """Paths of the fenced block under `## Layout`: the first word of each line, below the folder it is indented in."""
    block = re.search(r"^## Layout\s*\n.*?^```\w*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block, "README.md has no fenced block under '## Layout'"
    paths, folders = [], [(-1, "")]
    for line in filter(str.strip, block[1].splitlines()):
        indent, word = len(line) - len(line.lstrip()), line.split()[0]
        while folders[-1][0] >= indent:
            folders.pop()
        paths.append(folders[-1][1] + word)
        if word.endswith("/"):
            folders.append((indent, paths[-1]))
    return paths


def test_readme_layout_is_read_by_indentation():
    text = "# x\n\n## Layout\n\nwords\n```\na/      first\n  b.py  second\n  c/\n    d.py\ne/f.py\n```\n"
    assert listed_paths(text) == ["a/", "a/b.py", "a/c/", "a/c/d.py", "e/f.py"]


def test_readmes_layout_is_true_and_complete():
    readme = PROJECT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README.md yet")
    listed = listed_paths(readme.read_text(encoding="utf-8"))
    assert [path for path in listed if not (PROJECT / path).exists()] == []
    named = {path.rstrip("/") for path in listed}
    tops = {
        relative(path)
        for path in (PROJECT / PACKAGE).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert tops - named <= {f"{PACKAGE}/__init__.py"}
