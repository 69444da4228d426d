"""Imports only point down the layers of the architecture, and each part of the outside world has one home."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for package in ("broker", "protocol", "storage") for path in (ROOT / package).rglob("*.py")
)
TESTS = sorted(
    path
    for folder in ("tests", "tools", "docker")
    for path in (ROOT / folder).rglob("*.py")
    if "node_modules" not in path.parts
)

LAYERS = (
    ("protocol", "storage"),
    ("broker.base",),
    ("broker.entities",),
    ("broker.identifiers",),
    ("broker.operations",),
    ("broker.send_lists",),
    ("broker.settings", "broker.access", "broker.message", "broker.refusal_wording", "broker.throttle"),
    ("broker.rules",),
    ("broker.partition",),
    ("broker.namespace", "broker.hosting"),
    ("broker.messaging",),
    ("broker.frontend", "broker.maintenance"),
    ("broker.http",),
    ("broker.descriptors", "broker.memory_limits"),
    ("broker.namespace_parts",),
    ("broker.server",),
    ("broker.cli",),
    ("broker.__main__",),
)
"""The parts of the product, from the ground up. A part imports only what lies below it."""

FORBIDDEN = {
    "protocol": ("asyncio", "socket"),
    "broker.partition": ("protocol", "aiohttp"),
    "broker.namespace": ("protocol", "aiohttp"),
    "broker.namespace.router": ("broker.partition", "storage"),
    "broker.hosting": ("protocol", "aiohttp"),
    "broker.messaging": ("protocol", "storage", "aiohttp", "broker.partition"),
    "broker.frontend": ("storage", "broker.partition"),
    "broker.frontend.links": (
        "broker.frontend.nodes",
        "broker.frontend.connection",
        "broker.frontend.listener",
    ),
    "broker.frontend.nodes": ("broker.frontend.connection", "broker.frontend.listener"),
    "broker.http": ("storage", "protocol", "broker.partition"),
}
"""What a part must not import although it lies below it. A name covers itself and everything in it."""

TYPE_SYSTEM = {f"protocol.{name}" for name in ("codec", "decode", "encode", "sections", "types", "values")}
"""What encodes and decodes values and messages (§1.6, §3.2), and knows nothing of connections."""

READS_THE_TIME = {"time", "time_ns", "now", "utcnow", "today", "monotonic", "monotonic_ns"}
WRITES_FILES = {
    "open",
    "fsync",
    "fdatasync",
    "replace",
    "rename",
    "unlink",
    "remove",
    "rmdir",
    "mkdir",
    "write_bytes",
    "write_text",
    "ftruncate",
}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def writes_files(path: Path) -> bool:
    """Whether a module calls `os` or `shutil` to change a file, the built-in `open`, or a path's own
    `write_…`."""
    return any(
        (where in ("os", "shutil") and name in WRITES_FILES)
        or (where, name) == ("", "open")
        or name in ("write_bytes", "write_text")
        for where, name in calls_of(path)
    )


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module_of(path)} imports relatively, in line {node.lineno}"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def below(name: str, parent: str) -> bool:
    return name == parent or name.startswith(parent.rstrip(".") + ".")


def calls_of(path: Path) -> set[tuple[str, str]]:
    """Calls as (object, name): ("os", "fsync"), ("", "open")."""
    calls = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                calls.add((ast.unparse(node.func.value), node.func.attr))
            elif isinstance(node.func, ast.Name):
                calls.add(("", node.func.id))
    return calls


def part_of(name: str) -> tuple[int, str] | None:
    """The layer and the part of a module; None for modules that are not ours, and for `broker` itself."""
    for level, parts in enumerate(LAYERS):
        for part in parts:
            if below(name, part):
                return level, part
    return None


def test_every_package_is_part_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in SOURCES if path.name == "__init__.py"
    }
    assert set(project["tool"]["setuptools"]["packages"]) == packages


def test_every_module_has_its_layer() -> None:
    assert [module_of(path) for path in SOURCES if part_of(module_of(path)) is None] == ["broker"]


def test_imports_run_down_the_layers() -> None:
    wrong = []
    for path in SOURCES:
        if (here := part_of(module_of(path))) is None:
            continue
        for name in sorted(imports_of(path)):
            there = part_of(name)
            if there is not None and there[1] != here[1] and there[0] >= here[0]:
                wrong.append(f"{module_of(path)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("part", FORBIDDEN)
def test_no_part_imports_what_is_forbidden_to_it(part: str) -> None:
    wrong = [
        f"{module_of(path)} imports {name}"
        for path in SOURCES
        if below(module_of(path), part)
        for name in sorted(imports_of(path))
        if any(below(name, forbidden) for forbidden in FORBIDDEN[part])
    ]
    assert wrong == []


@cache
def own_imports() -> dict[str, set[str]]:
    """For each of our modules, those of our modules that it imports. Imports for type checking count as
    well."""
    modules = {module_of(path): path for path in SOURCES}
    return {module: imports_of(path) & modules.keys() - {module} for module, path in modules.items()}


@cache
def reached_from(start: str) -> set[str]:
    """The modules that a module imports, directly or through others."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        following = own_imports()[ahead.pop()] - found
        found |= following
        ahead += following
    return found


def import_circles() -> list[list[str]]:
    """Groups of modules that reach one another through imports."""
    groups = {
        tuple(sorted(other for other in reached_from(module) if module in reached_from(other)))
        for module in own_imports()
    }
    return [list(group) for group in sorted(groups) if group]


@pytest.mark.parametrize(
    "part", ["broker.message", "broker.partition", "broker.namespace", "broker.hosting", "broker.messaging"]
)
def test_behind_the_front_end_only_the_type_system_of_amqp_is_known(part: str) -> None:
    """Also through other modules: messages are encoded values, but no partition knows of links or frames."""
    reached = {name for module in own_imports() if below(module, part) for name in reached_from(module)}
    assert {name for name in reached if below(name, "protocol")} <= TYPE_SYSTEM


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert import_circles() == []


WITHOUT_TESTS_OF_THEIR_OWN = {
    "broker.__main__": "a few lines; the tests of the command run it",
    "broker.frontend.connection_view": "an interface, which `Connection` implements",
    "broker.hosting.host": "an interface, which test_local and test_remote test",
    "broker.hosting.messages": "messages without code; test_schema encodes and decodes each of them",
    "broker.http.seams": "interfaces, which `Authorizer` implements",
    "broker.namespace.health": "names without code",
    "broker.operations.browsing": "operations and answers without code",
    "broker.operations.deleting": "operations and answers without code",
    "broker.operations.general": "operations and answers without code",
    "broker.operations.message_states": "numbers without code",
    "broker.operations.receiving": "operations and answers without code",
    "broker.operations.redriving": "operations and answers without code",
    "broker.operations.rule_changes": "operations and answers without code",
    "broker.operations.scheduling": "operations and answers without code",
    "broker.operations.selecting": "operations and answers without code",
    "broker.operations.sending": "operations and answers without code",
    "broker.operations.sessions": "operations and answers without code",
    "broker.operations.settling": "operations and answers without code",
    "broker.operations.streams": "operations and answers without code",
    "broker.operations.transactions": "operations and answers without code",
    "broker.partition.health": "names without code",
    "broker.partition.task_limits": "bounds without code; test_task checks that the task keeps them",
    "broker.partition.work": "sums without code; test_subqueue and test_subqueues check what is in them",
    "protocol.links": "data without code, which the engine fills in",
    "protocol.native.build": "runs when the package is built",
    "protocol.types": "types without code; test_codec encodes and decodes each of them",
    "storage.errors": "exceptions",
    "storage.shared": "data without code, which the store fills in",
}
"""Modules in which there is nothing to test by itself, and why."""


def unit_test_of(path: Path) -> Path:
    """Where the unit tests of a module belong."""
    return ROOT / "tests" / "unit" / path.relative_to(ROOT).parent / f"test_{path.name}"


def test_every_module_has_a_test_file_of_its_own_name() -> None:
    """The folders of `tests/unit` mirror those of the product, so a reader can guess where a test is."""
    modules = {module_of(path): path for path in SOURCES if path.name != "__init__.py"}
    without = {name for name, path in modules.items() if not unit_test_of(path).exists()}
    assert without == WITHOUT_TESTS_OF_THEIR_OWN.keys(), "add tests, or remove the exception"


def test_packages_have_no_code_outside_of_modules() -> None:
    code = [
        module_of(path)
        for path in SOURCES
        if path.name == "__init__.py" and any(not isinstance(node, ast.Expr) for node in tree_of(path).body)
    ]
    assert code == []


def homes(of: object) -> list[str]:
    assert callable(of)
    return [module_of(path) for path in SOURCES if of(path)]


def test_only_the_file_of_its_values_names_protons_c_core() -> None:
    assert homes(
        lambda path: any(below(name, "cproton_ffi") or below(name, "cproton") for name in imports_of(path))
    ) == ["protocol.proton_values"]


def test_only_the_clock_reads_the_time_of_day() -> None:
    def reads(path: Path) -> bool:
        clocks = ("time", "datetime", "date")
        return any(
            name in READS_THE_TIME and (where.split(".")[-1] in clocks or not where)
            for where, name in calls_of(path)
        )

    assert homes(reads) == ["broker.base.clock"]


def test_only_the_disk_writes_files_of_the_storage_and_outside_it_only_certificates_are_written() -> None:
    in_proc = "broker.cli.huge_pages"  # the name of its own process
    assert homes(writes_files) == [in_proc, "broker.settings.certificates", "storage.disk"]


def test_only_the_frontends_answers_word_an_amqp_condition_of_the_service() -> None:
    def words(path: Path) -> bool:
        return any(
            isinstance(node, ast.Constant) and node.value == "com.microsoft:message-lock-lost"
            for node in ast.walk(tree_of(path))
        )

    assert homes(words) == ["broker.refusal_wording"]


def test_every_module_says_what_it_answers_for() -> None:
    assert [
        module_of(path)
        for path in SOURCES
        if not ast.get_docstring(tree_of(path)) and path.read_text(encoding="utf-8").strip()
    ] == []


def test_files_have_one_purpose_and_fewer_than_700_lines() -> None:
    assert [
        str(path.relative_to(ROOT))
        for path in (*SOURCES, *TESTS)
        if len(path.read_text(encoding="utf-8").splitlines()) >= 700
    ] == []


def test_c_code_has_lines_of_at_most_110_characters() -> None:
    """Ruff checks those of Python."""
    sources = [path for name in ("*.c", "*.h") for path in (ROOT / "broker").rglob(name)]
    sources += [path for name in ("*.c", "*.h") for path in (ROOT / "protocol").rglob(name)]
    assert [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(sources)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 110
    ] == []


CONNECTOR = sorted((ROOT / "connector" / "pyspark_partibus").rglob("*.py"))
"""A distribution of its own, installed where the broker is not."""
CONNECTOR_TESTED_WITH_A_BROKER = {"connection", "links", "operations", "ranges", "requests"}
"""Modules of its client that need a peer: `tests/connector` tests them."""


def test_the_connector_imports_nothing_of_the_broker() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in CONNECTOR
        for name in sorted(imports_of(path))
        if any(below(name, ours) for ours in ("broker", "protocol", "storage", "tests", "tools"))
    ]
    assert len(CONNECTOR) > 10
    assert wrong == []


def test_every_module_of_the_connector_says_what_it_answers_for_and_has_tests() -> None:
    root = ROOT / "connector" / "pyspark_partibus"
    without = []
    for path in CONNECTOR:
        assert ast.get_docstring(tree_of(path)), path
        assert len(path.read_text(encoding="utf-8").splitlines()) < 500, path
        folder = ROOT / "tests" / "unit" / "connector" / path.relative_to(root).parent
        test = folder / f"test_{path.name}"
        if path.name != "__init__.py" and not test.exists():
            without.append(path.stem)
    assert set(without) == CONNECTOR_TESTED_WITH_A_BROKER


def test_nothing_is_left_undone() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
    found = [
        f"{path.relative_to(ROOT)}: {mark}"
        for path in (*SOURCES, *TESTS)
        for mark in marks
        if mark in path.read_text(encoding="utf-8")
    ]
    assert found == []
