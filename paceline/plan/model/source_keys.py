"""Find which config keys a family's code in Transformers reads, from its source (importing needs torch)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import util
from pathlib import Path

from paceline.core.files import read_text

_WORD = re.compile(r"[A-Za-z_]\w*")
_BASE, _ROPE = "configuration_utils.py", "modeling_rope_utils.py"


@dataclass(frozen=True)
class FamilyWords:
    """The identifiers of a family's code.

    ``fields``: keys that its config class declares. ``words``: all identifiers in its code and in the rotary
    embedding code, plus the keys of every config class. A key that is not among ``words`` has no effect.
    """

    fields: tuple[str, ...]
    words: frozenset[str]


@lru_cache(maxsize=8)
def family_words(model_type: str) -> FamilyWords | None:
    """Return a family's identifiers; None if Transformers is not installed or lacks this ``model_type``."""
    if not re.fullmatch(r"[A-Za-z][\w.-]{0,63}", model_type):
        return None
    spec = util.find_spec("transformers")
    root = Path(spec.origin).parent if spec is not None and spec.origin else None
    folder = _folder(root, model_type) if root is not None else None
    if root is None or folder is None:
        return None
    configs = sorted(folder.glob("configuration_*.py"))
    code = [read_text(path) for path in (*configs, *folder.glob("modeling_*.py"), root / _ROPE)]
    fields = [name for text in code[: len(configs)] for name in _declared(text)]
    if not fields:
        return None
    words = {word for text in code for word in _WORD.findall(text)}
    return FamilyWords(
        tuple(dict.fromkeys(fields)), frozenset(words.union(_declared(read_text(root / _BASE))))
    )


def _folder(root: Path, model_type: str) -> Path | None:
    """Return the folder with the family's code: by its name, or by Transformers' own table."""
    own_folder = root / "models" / model_type.replace("-", "_").lower()
    if own_folder.is_dir():
        return own_folder
    table = root / "models" / "auto" / "auto_mappings.py"
    folders = re.findall(
        rf'\("{re.escape(model_type)}", "([a-z0-9_]+)"\)', read_text(table) if table.is_file() else ""
    )
    return next((root / "models" / name for name in folders if (root / "models" / name).is_dir()), None)


def _declared(source: str) -> list[str]:
    """Return the fields that classes declare (annotated names), and the keys of their ``attribute_map``."""
    fields: list[str] = []
    for node in ast.parse(source).body:
        for item in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                fields.append(item.target.id)
            elif isinstance(item, ast.Assign) and [getattr(t, "id", "") for t in item.targets] == [
                "attribute_map"
            ]:
                keys = item.value.keys if isinstance(item.value, ast.Dict) else []
                fields += [
                    key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
                ]
    return fields
