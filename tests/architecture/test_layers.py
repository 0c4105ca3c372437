"""The house plan, held by reading the sources: layers, the torch line, and what no file may do."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter
from collections.abc import Collection, Mapping

import doors
import pytest
from sources import (
    ABOVE_THE_TORCH_LINE,
    ROOMS,
    ROOT,
    WITHOUT_TORCH_ROOMS,
    Source,
    dotted,
    imports_by_file,
    modules,
    sources,
)

TORCH_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "safetensors",
    "accelerate",
    "deepspeed",
    "peft",
    "numpy",
)
# strategies, generation, algorithms and data do not import each other but through protocols; algorithms may
# call generation
STRANGERS = {
    "data": {"strategies", "generation", "algorithms"},
    "strategies": {"data", "generation", "algorithms"},
    "generation": {"data", "strategies", "algorithms"},
    "algorithms": {"data", "strategies"},
}
ENVIRONMENT_READERS = (
    "paceline/rehearsal/",  # what it starts gets this environment
    "paceline/api/",
    "paceline/cli/",
    "paceline/launch/",
    "paceline/doctor/",
    "paceline/runtime/process_group/world.py",
)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "paceline" and len(parts) > 1 and parts[1] in ROOMS else None


def test_every_room_has_its_place() -> None:
    rooms = {source.room for source in sources()} - {""}
    assert len(sources()) > 40, "the sources were not found"
    assert rooms <= set(ROOMS), f"rooms that the house plan does not know: {sorted(rooms - set(ROOMS))}"


def test_a_room_imports_only_rooms_before_it() -> None:
    wrong = []
    for source in sources():
        for module, node, _ in source.imports():
            room = room_of(module)
            if (
                source.room
                and room
                and (ROOMS.index(room) > ROOMS.index(source.room) or room in STRANGERS.get(source.room, ()))
            ):
                wrong.append(f"{source.at(node)} {source.room} imports {module}")
    assert not wrong, "\n".join(wrong)


def _circles(graph: Mapping[str, Collection[str]]) -> list[set[str]]:
    """Sets of nodes that reach each other, the largest first."""
    reach = {node: {node} for node in graph}
    changed = True
    while changed:
        changed = False
        for node, successors in graph.items():
            size = len(reach[node])
            reach[node].update(*(reach.get(successor, set()) for successor in successors))
            changed |= len(reach[node]) > size
    groups = {frozenset(other for other in reach[node] if node in reach[other]) for node in graph}
    return sorted((set(group) for group in groups if len(group) > 1), key=len, reverse=True)


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, those for type checking alone do not."""
    try:
        list(graphlib.TopologicalSorter(imports_by_file(for_types=False)).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_few_files_need_each_other_for_types() -> None:
    """At most ten files of a group can be read only together; there was one of 128."""
    groups = _circles(imports_by_file(for_types=True))
    assert [sorted(group) for group in groups if len(group) > 10] == []


#: Folders that import each other in a circle, a parent and its child too. Lower it when it falls.
FOLDERS_IN_CIRCLES = 72


def test_folders_import_each_other_less_and_less() -> None:
    modules_by_name = modules()
    folders: dict[str, set[str]] = {}
    for name, imports in imports_by_file(for_types=False).items():
        folder = modules_by_name[name].path.rpartition("/")[0]
        folders.setdefault(folder, set()).update(modules_by_name[m].path.rpartition("/")[0] for m in imports)
    circles = _circles(folders)
    for circle in circles:
        print(len(circle), *sorted(circle))
    assert sum(map(len, circles)) <= FOLDERS_IN_CIRCLES


def test_a_room_is_entered_by_its_doors() -> None:
    """A module that another room imports is a door of its room: ``python tests/architecture/doors.py``."""
    recorded = doors.RECORDED.read_text(encoding="utf-8").split()
    assert doors.doors() == recorded, "a new door, or one that nobody uses: record it and look at the diff"


@pytest.mark.parametrize(
    ("graph", "circles"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [{"a", "b", "c"}]),
        ({"a": {"b"}, "b": set(), "c": {"d"}, "d": {"c"}}, [{"c", "d"}]),
    ],
)
def test_a_circle_is_seen(graph: dict[str, set[str]], circles: list[set[str]]) -> None:
    assert _circles(graph) == circles


def test_nothing_above_the_torch_line_imports_torch() -> None:
    wrong = []
    for source in sources():
        if source.room in (*ABOVE_THE_TORCH_LINE, *WITHOUT_TORCH_ROOMS):
            wrong += [
                f"{source.at(node)} imports {module}"
                for module, node, _ in source.imports()
                if is_heavy(module, source)
            ]
    assert not wrong, "\n".join(wrong)


def is_heavy(module: str, source: Source) -> bool:
    top = module.split(".")[0]
    if top == "numpy" and source.room in ("watch", "demo"):  # plots
        return False
    torch_rooms = ROOMS[ROOMS.index("protocols") : ROOMS.index("doctor")]
    return top in TORCH_LIBRARIES or (source.room in WITHOUT_TORCH_ROOMS and room_of(module) in torch_rooms)


def test_core_is_standard_library_only() -> None:
    import sys

    wrong = [
        f"{source.at(node)} imports {module}"
        for source in sources()
        if source.room == "core"
        for module, node, _ in source.imports()
        if module.split(".")[0] not in {*sys.stdlib_module_names, "paceline"}
    ]
    assert not wrong, "\n".join(wrong)


def test_one_place_opens_the_process_group() -> None:
    places = [
        source.at(call)
        for source in sources()
        for name, call in source.calls()
        if name.endswith("init_process_group")
    ]
    assert len(places) == 1, places
    assert places[0].startswith("paceline/runtime/process_group/world.py:")


def test_the_environment_is_read_in_few_places() -> None:
    wrong = [
        source.at(node)
        for source in sources()
        if not source.path.startswith(ENVIRONMENT_READERS)
        for node in source.nodes()
        if (
            isinstance(node, ast.Attribute)
            and dotted(node) in ("os.environ", "os.getenv", "os.putenv", "os.environb")
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {a.name for a in node.names} & {"environ", "getenv", "putenv"}
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_no_global_state() -> None:
    wrong = [
        source.at(node) for source in sources() for node in source.nodes() if isinstance(node, ast.Global)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"])
def test_no_pickles(module: str) -> None:
    wrong = [
        source.at(node)
        for source in sources()
        for name, node, _ in source.imports()
        if name.split(".")[0] == module
    ]
    assert not wrong, "\n".join(wrong)


def test_no_call_that_runs_or_unpickles_text() -> None:
    forbidden = {"eval", "exec", "compile", "torch.load", "torch.save", "os.system", "os.popen", "yaml.load"}
    objects = {
        "all_gather_object",
        "gather_object",
        "broadcast_object_list",
        "scatter_object_list",
        "send_object_list",
        "recv_object_list",
    }
    wrong = []
    for source in sources():
        for name, call in source.calls():
            in_shell = any(
                k.arg == "shell" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
                for k in call.keywords
            )
            if name in forbidden or name.rsplit(".", 1)[-1] in objects or in_shell:
                wrong.append(f"{source.at(call)} {name}")
    assert not wrong, "\n".join(wrong)


def test_modules_of_warm_processes_are_there() -> None:
    """Without one of them no warm process starts, and a fast check of a change would not see it."""
    lines = (ROOT / "tests/warm_modules.txt").read_text().split()
    names = {line.partition(":")[0] for line in lines if line.startswith("paceline.")}
    gone = [name for name in sorted(names) if not (ROOT / f"{name.replace('.', '/')}.py").is_file()]
    assert not gone, "tests/warm_modules.txt"


def test_nobody_asks_which_strategy_or_algorithm_it_is() -> None:
    wrong = []
    for source in sources():
        foreign = {
            alias.asname or alias.name: node.module
            for node in source.nodes()
            if isinstance(node, ast.ImportFrom)
            and node.module
            and room_of(node.module) in ("strategies", "algorithms")
            and room_of(node.module) != source.room
            for alias in node.names
        }
        for name, call in source.calls():
            if name == "isinstance" and len(call.args) == 2:
                asked = {n.id for n in ast.walk(call.args[1]) if isinstance(n, ast.Name)}
                wrong += [f"{source.at(call)} isinstance of {n}" for n in asked & foreign.keys()]
    assert not wrong, "\n".join(wrong)


def test_a_folder_can_be_read_at_a_glance() -> None:
    """At most 18 modules, as in the largest of torchtitan's and TRL's."""
    package = ROOT / "paceline"
    counts = Counter(path.parent for path in package.rglob("*.py") if path.name != "__init__.py")
    assert len(counts) > 40
    assert [(str(folder), count) for folder, count in counts.items() if count > 18] == []
