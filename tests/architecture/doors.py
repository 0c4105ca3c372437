"""The doors of the rooms: modules that other rooms import. ``python tests/architecture/doors.py`` records
those of now in doors.txt.
"""

from __future__ import annotations

from pathlib import Path

from sources import imports_by_file, modules

RECORDED = Path(__file__).with_suffix(".txt")


def doors() -> list[str]:
    """Return the modules of rooms that another room imports, sorted."""
    rooms = {name: source.room for name, source in modules().items()}
    return sorted(
        {
            imported
            for name, imports in imports_by_file().items()
            for imported in imports
            if rooms[name] and rooms[imported] and rooms[name] != rooms[imported]
        }
    )


if __name__ == "__main__":
    RECORDED.write_text("".join(f"{door}\n" for door in doors()), encoding="utf-8")
