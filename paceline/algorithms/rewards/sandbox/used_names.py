"""Names that the tests of a row take from the program: those that they use but neither define nor import."""

from __future__ import annotations

import ast
import builtins
import symtable

PROGRAM_MODULES = ("solution", "program", "submission")  # `from solution import f` means the program


def used_names(tree: ast.Module) -> set[str]:
    """Return the global names that ``tree`` reads but does not bind at its top level, built-ins included.

    Raises SyntaxError.
    """
    top = symtable.symtable(ast.unparse(tree), "tests", "exec")
    bound = {
        s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()
    }
    used: set[str] = set()
    todo = [top]
    while todo:
        table = todo.pop()
        todo += table.get_children()
        used |= {
            s.get_name() for s in table.get_symbols() if s.is_referenced() and (table is top or s.is_global())
        }
    return used - bound


def tested_names(tree: ast.Module) -> set[str]:
    """Return ``used_names`` without built-ins.

    If none is left, return the built-in that every assertion calls first. The task may be to write ``sum``,
    say.
    """
    used = used_names(tree)
    names = {name for name in used if not hasattr(builtins, name) and name != "__name__"}
    if names or _imports_program(tree):
        return names
    called = [_called_first(node.test) for node in tree.body if isinstance(node, ast.Assert)]
    return {called[0]} & used if called and called[0] and len(set(called)) == 1 else set()


def used_as_modules(tree: ast.Module) -> set[str]:
    """Return names only used with an attribute (``math.isclose``), never called or compared themselves."""
    inside = [
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    everywhere = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {name for name in inside if inside.count(name) == everywhere.count(name)}


def _imports_program(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.module in PROGRAM_MODULES)
        or (isinstance(node, ast.Import) and any(alias.name in PROGRAM_MODULES for alias in node.names))
        for node in ast.walk(tree)
    )


def _called_first(test: ast.expr) -> str:
    """Return the name of the function called on the left of a comparison."""
    left = test.left if isinstance(test, ast.Compare) else test
    return left.func.id if isinstance(left, ast.Call) and isinstance(left.func, ast.Name) else ""
