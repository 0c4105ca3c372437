"""An object's attributes are its own: what another one gives it comes at construction, or by a method with
a name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sources import sources

ROOMS = ("training", "algorithms")
STATE = "state"  # what a run must remember is one record that trainer, best rule and learning keep together
# what remains, each with its reason
ALLOWED = {
    ("paceline/training/rank_checks.py", "remote.exit_code"): "an exception on its way",
    (
        "paceline/training/run/peer_failures.py",
        "self._run.line.on_peer_exit",
    ): "the line is there before what it calls",
    ("paceline/algorithms/rewards/sandbox/program.py", "sys.stdin"): "a process of its own",
    ("paceline/algorithms/rewards/sandbox/program.py", "sys.stdout"): "a process of its own",
    ("paceline/algorithms/rewards/sandbox/program.py", "sys.__stdout__"): "a process of its own",
}


def targets(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        given = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign | ast.AnnAssign)
            else []
        )
        for target in given:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]


def changed_from_outside(tree: ast.AST) -> Iterator[str]:
    """Attributes that are set of anything but ``self``, and of no record of a run's state."""
    for target in targets(tree):
        if isinstance(target, ast.Attribute):
            owner = ast.unparse(target.value)
            if owner not in ("self", "cls") and owner.rpartition(".")[2] != STATE:
                yield ast.unparse(target)


def test_nobody_changes_an_object_from_outside() -> None:
    found = {
        (source.path, name)
        for source in sources()
        if source.room in ROOMS
        for name in changed_from_outside(source.tree)
    }
    assert found == ALLOWED.keys(), (
        f"new: {sorted(found - ALLOWED.keys())}, gone: {sorted(ALLOWED.keys() - found)}"
    )


def test_the_check_sees_what_it_is_for() -> None:
    before = (
        "trainer.save = f\nself.algorithm.metric_names, x = names, 1\nself.mine = 1\nself.state.step +="
        " 1\nroot.a.b: int = 3"
    )
    assert sorted(changed_from_outside(ast.parse(before))) == [
        "root.a.b",
        "self.algorithm.metric_names",
        "trainer.save",
    ]
