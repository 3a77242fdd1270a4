"""The architecture, as assertions: what may import what, where a rule lives, what is public."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sardonyx
from sardonyx import opset
from sardonyx.cli.__main__ import COMMANDS
from sardonyx.registry import Registry, op_name
from tests.cases import all_cases

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "sardonyx"
FRAMEWORKS = ("torch", "jax", "flax", "tensorflow", "keras", "onnxruntime")
# Where each may be imported, as beginnings of paths inside the package.
ALLOWED = {
    "onnx.defs": ("opset.py",),
    "onnxruntime": ("engines/onnxruntime/", "testing.py", "score/peers/"),
    "torch": ("engines/torch/", "importers/torch/", "score/peers/"),
    "jax": ("engines/jax/", "importers/jax/", "importers/keras/", "score/peers/"),
    "flax": ("engines/jax/", "importers/jax/"),
    "tensorflow": ("engines/tensorflow/", "importers/tensorflow/"),
    "keras": ("engines/keras/", "importers/keras/", "importers/tensorflow/"),
    "openvino": ("engines/openvino/", "score/peers/"),
    "iree": ("engines/iree/", "score/peers/"),
    "tract": ("engines/tract/",),
    "sklearn": ("importers/sklearn/",),
    "skl2onnx": ("importers/sklearn/",),
    "xgboost": ("importers/boosting/",),
    "lightgbm": ("importers/boosting/",),
    "catboost": ("importers/boosting/",),
}
# The flow of data is one way: a package or module imports from its own line and from lines above
# it, never from one below. Every package and module of the project is on one line.
LAYERS = (
    ("collector", "errors"),
    ("html_page", "initializer", "limits", "opset", "reference"),
    (
        "column_inputs",
        "external",
        "fixed_tables",
        "frames",
        "partial",
        "plugins",
        "registry",
        "values",
    ),
    ("build",),
    ("model",),
    ("upgrades",),
    ("passes",),
    ("normalize",),
    ("cost", "versions", "weights"),
    ("save",),
    ("diff", "edit"),
    ("grad",),
    ("lower", "operator_support"),
    ("record",),
    ("engines",),
    ("checking", "inspection", "testing"),
    ("custom", "picture"),
    ("train",),
    ("quantize",),
    ("verify",),
    ("deploy", "importers", "web"),
    ("score",),
    ("cli",),
    ("__main__",),
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
VAGUE = {"utils", "helpers", "common", "base", "core", "misc", "tools"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imported_names(path: Path) -> set[str]:
    """Dotted names that a file imports or reaches through an imported package."""
    result = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            result |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            result.add(f"{node.value.id}.{node.attr}")
    return result


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def plain_imports(path: Path) -> set[str]:
    """Dotted names of import statements only: a local variable called `jax` is not an import."""
    return plain_imports_of(ast.parse(path.read_text()))


def plain_imports_of(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("banned", ALLOWED)
def test_each_framework_stays_in_its_package(banned: str) -> None:
    names = imported_names if banned == "onnx.defs" else plain_imports
    elsewhere = [
        place(path)
        for path in SOURCES
        if not place(path).startswith(ALLOWED[banned])
        and any(is_inside(name, banned) for name in names(path))
    ]
    assert not elsewhere


def computed_imports(tree: ast.AST) -> set[str]:
    """What `importlib.import_module` is called with; of a computed name, its fixed beginning."""
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
        name = function.id if isinstance(function, ast.Name) else function
        if name not in ("import_module", "__import__"):
            continue
        argument = node.args[0]
        parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
        fixed = parts[0].value if isinstance(parts[0], ast.Constant) else "?"
        names.add(fixed.rstrip("."))
    return names


def owner(path: Path) -> str:
    """The package or module directly below `sardonyx` that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def against_the_flow(path: Path, source: str) -> set[str]:
    """What a file imports from a line below its own: at its top, in functions, by importlib."""
    here = owner(path)
    names = plain_imports_of(ast.parse(source)) | computed_imports(ast.parse(source))
    inside = {name.split(".")[1] for name in names if name.startswith("sardonyx.")} - {here}
    late = {name for name in inside & LAYER.keys() if LAYER[name] >= LAYER[here]}
    return {f"{place(path)} imports sardonyx.{name}" for name in late}


def test_every_package_has_its_place_in_the_flow() -> None:
    present = {owner(path) for path in SOURCES} - {"__init__"}
    assert present == set(LAYER), "LAYERS lists what does not exist, or lacks what does"


def test_data_flows_one_way() -> None:
    sources = [path for path in SOURCES if path != PACKAGE / "__init__.py"]
    assert not set().union(*(against_the_flow(path, path.read_text()) for path in sources))


def test_importers_reach_engines_only_through_verify() -> None:
    sources = [path for path in SOURCES if place(path).startswith("importers/")]
    assert sources
    names = {name for path in sources for name in plain_imports(path)}
    assert not {name for name in names if is_inside(name, "sardonyx.engines")}


def test_no_import_is_hidden_from_the_flow() -> None:
    # A computed module name could be anything: these walk their own package, or name a wheel or a
    # module of the user's.
    own_modules = {
        "importers/keras/worker.py",
        "engines/onnxruntime/extensions.py",
        "grad/__init__.py",
        "lower/__init__.py",
        "__init__.py",
    }
    hidden = {p for p in SOURCES if "?" in computed_imports(ast.parse(p.read_text()))}
    assert {place(path) for path in hidden} <= own_modules


@pytest.mark.parametrize(
    "statement",
    [
        "from sardonyx.engines import torch",
        "def late():\n    import sardonyx.engines.torch",
        "importlib.import_module('sardonyx.engines.torch')",
        "import_module(f'sardonyx.engines.{name}')",
    ],
)
def test_the_flow_test_sees(statement: str) -> None:
    assert against_the_flow(PACKAGE / "grad" / "driver.py", statement)
    assert not against_the_flow(PACKAGE / "train" / "loop.py", statement)


def test_no_module_has_a_vague_name() -> None:
    assert not {place(path) for path in SOURCES if path.stem in VAGUE}
    assert not {place(path) for path in SOURCES if path.parent.name in VAGUE}


def modules_loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_import_loads_no_framework() -> None:
    assert not modules_loaded_by("import sardonyx") & set(FRAMEWORKS)


def test_help_loads_no_framework_and_no_command() -> None:
    loaded = modules_loaded_by(
        "from sardonyx.cli.__main__ import program\n"
        "program()(['--help'], prog_name='sardonyx', standalone_mode=False)"
    )
    assert "sardonyx.cli.__main__" in loaded
    assert not loaded & set(FRAMEWORKS)
    commands = {f"sardonyx.cli.{target.partition(':')[0]}" for target, _ in COMMANDS.values()}
    assert not loaded & commands


def test_every_command_file_has_a_row() -> None:
    rows = {target.partition(":")[0] for target, _ in COMMANDS.values()}
    files = {path.stem for path in (PACKAGE / "cli").glob("*.py")}
    for stem in files - rows - {"__init__", "__main__"}:
        source = ast.parse((PACKAGE / "cli" / f"{stem}.py").read_text())
        functions = {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
        assert stem not in functions, f"cli/{stem}.py is a command without a row in COMMANDS"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_row_names_a_function(name: str) -> None:
    module, _, function = COMMANDS[name][0].partition(":")
    # `import` is a word of Python, `inspect` a module of its own: their files end in _model.py.
    assert (
        module
        == function
        == {"import": "import_model", "inspect": "inspect_model"}.get(name, name.replace("-", "_"))
    )
    path = PACKAGE / "cli" / f"{module}.py"
    if path.exists():
        defined = ast.parse(path.read_text()).body
        assert function in {node.name for node in defined if isinstance(node, ast.FunctionDef)}


PUBLIC = sorted(set(sardonyx.__all__) - {"__version__"})


def test_all_is_what_type_checkers_see() -> None:
    source = ast.parse((PACKAGE / "__init__.py").read_text())
    (guarded,) = (node for node in source.body if isinstance(node, ast.If))
    seen = [alias.name for node in guarded.body for alias in node.names]
    assert sorted(seen) == PUBLIC
    assert len(sardonyx.__all__) == len(PUBLIC) + 1


def test_public_functions_are_not_hidden_by_modules_of_their_name() -> None:
    # Importing the package sardonyx.grad makes Python set the attribute `grad` of sardonyx.
    namesakes = [name for name in PUBLIC if importlib.util.find_spec(f"sardonyx.{name}")]
    script = (
        f"import importlib, sardonyx, types\n"
        f"for name in {namesakes!r}: importlib.import_module('sardonyx.' + name)\n"
        f"hidden = [n for n in {namesakes!r} if n not in ('errors', 'testing')\n"
        f"          and isinstance(getattr(sardonyx, n), types.ModuleType)]\n"
        f"assert not hidden, hidden"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(sardonyx, name))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_function_has_an_example(name: str) -> None:
    thing = getattr(sardonyx, name)
    if inspect.isfunction(thing):
        assert ">>>" in (inspect.getdoc(thing) or "")


def test_a_model_argument_is_everywhere_the_same() -> None:
    # verify takes modules, functions and engines beside models: its subjects are its own.
    functions = [thing for name in PUBLIC if inspect.isfunction(thing := getattr(sardonyx, name))]
    parameters = [(f, p) for f in functions for p in inspect.signature(f).parameters.values()]
    models = {f.__name__: p.annotation for f, p in parameters if p.name == "model"}
    assert {"load", "train", "save", "grad", "to_torch", "weights"} - models.keys() == {"load"}
    assert set(models.values()) == {"ModelSource"}, models


def rule_modules(package_name: str) -> list[str]:
    paths = (path for path in SOURCES if place(path).startswith(f"{package_name}/"))
    return [
        f"sardonyx.{place(p).removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
        for p in paths
    ]


def registries() -> dict[str, tuple[str, Registry]]:
    """Every registry of the packages that hold rules, by its kind."""
    result = {}
    for package_name in ("grad", "lower"):
        for module in rule_modules(package_name):
            for thing in vars(importlib.import_module(module)).values():
                if isinstance(thing, Registry):
                    result[thing.kind] = (package_name, thing)
    return result


REGISTRIES = registries()


@pytest.mark.parametrize("kind", REGISTRIES)
def test_each_rule_lives_in_the_module_of_its_family(kind: str) -> None:
    package_name, registry = REGISTRIES[kind]
    misplaced = []
    for key in registry:
        domain, op = key
        root, module_package, *rest = registry.rules[key].module.split(".")
        if (root, module_package) != ("sardonyx", package_name):
            continue
        family = opset.family(op, domain)
        if not (rest[0] == family or rest[0].startswith(f"{family}_")):
            misplaced.append(
                f"{op_name(key)} is in {package_name}/{rest[0]}.py, belongs to {family}"
            )
    assert not misplaced


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_rule_has_a_case(kind: str) -> None:
    _, registry = REGISTRIES[kind]
    ours = {op for domain, op in registry if domain in opset.INSIDE}
    assert not ours - {case.op for case in all_cases()}


def test_no_gradient_and_rules_are_disjoint() -> None:
    for package_name, registry in REGISTRIES.values():
        for module in rule_modules(package_name):
            on_purpose = getattr(importlib.import_module(module), "NO_GRADIENT", ())
            listed = {key if isinstance(key, tuple) else ("", key) for key in on_purpose}
            assert not listed & set(registry)


@pytest.mark.skipif(not (PACKAGE / "cli" / "ops.py").exists(), reason="there is no `sardonyx ops`")
def test_operator_reference_is_what_the_registry_prints() -> None:
    command = [sys.executable, "-m", "sardonyx", "ops", "--markdown"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "reference" / "ops.md").read_text() == printed


def test_missing_extras_are_real() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].keys()
    for path in SOURCES:
        named = re.findall(r"MissingExtra\(\s*[^,()]+,\s*\"([a-z]+)\"", path.read_text())
        named += re.findall(r"sardonyx\[([a-z]+)\]", path.read_text())
        assert set(named) <= extras, place(path)
