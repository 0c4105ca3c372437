"""What a config names is opened by ``core/files.py``, which refuses a FIFO that nobody writes into:
``plan`` would wait for it for ever.
"""

from __future__ import annotations

import ast

from sources import sources

#: The rooms that read what others wrote: configs, models, data, runs, checkpoints.
ROOMS = ("core", "config", "plan", "data", "checkpoint", "evaluation", "generation")
LOOKS = (
    "launch/run_secret.py",
    "training/exact_match.py",
    "training/preflight/inputs.py",
    "training/preflight/named_models.py",
)
#: Files that open others without it, and why.
OWN = {
    "core/files.py": "it is the door",
    "core/security/resource_limits.py": "/proc",
    "core/diagnostics.py": "Paceline's own tables",
    "config/backend_files/deepspeed/normalize.py": "Paceline's own table",
    "config/import_export/argument_tables.py": "Paceline's own tables",
    "checkpoint/format/durable_files.py": "a folder",
    "checkpoint/export/reload_check.py": "what this export wrote",
    "checkpoint/format/verify_files.py": "a part of a checkpoint: O_NOFOLLOW and O_NONBLOCK",
    "checkpoint/node_local/shared_disks.py": "a folder",
    "checkpoint/node_local/resume.py": "opens no file",
    "checkpoint/object_store/writer.py": "/proc",
    "checkpoint/object_store/obstore_backend.py": "what this run wrote",
    "checkpoint/preflight.py": "what this run's own start wrote",
    "checkpoint/object_store/background_upload.py": "opens no file",
    "checkpoint/save/retention.py": "a checkpoint of this run, to lock it",
    "checkpoint/export/hf_folder.py": "what this export wrote",
    "checkpoint/checkpointer.py": "opens no file",
    "evaluation/answers_file.py": "what an earlier process of this command wrote",
    "evaluation/scores/judge.py": "what this command wrote",
    "evaluation/main.py": "what this command's own start wrote",
    "evaluation/scores/metrics.py": "what this command wrote",
    "evaluation/processes/sharded_model.py": "opens no file",
    "evaluation/open_run.py": "what this command wrote",
    "evaluation/processes/work_folder.py": "what this command wrote",
    "config/yaml_text/read_file.py": "/dev/stdin and a shell's <(…), which have a writer",
    "plan/hardware/probe.py": "/proc and /sys",
    "plan/hardware/device_files.py": "/sys, and the installed torch's own version.py",
    "plan/child_answer.py": "what an earlier start of this user wrote",
    "plan/plan_json.py": "Paceline's own tables",
    "plan/cost/measured_runs.py": "Paceline's own ledger",
    "data/file_digests.py": "a block of a file whose kind is known, and Paceline's own notes",
    "data/prepare/epoch_lengths.py": "what this run's own start wrote",
    "data/prepare/main.py": "what this run's own start wrote",
    "data/images/open_image.py": "the bytes of a picture, in memory",
    "data/dataset_store.py": "prepared data, which Paceline wrote",
    "data/chat_template/template_texts.py": "Paceline's own templates, and a template that is a file",
}


def opens(tree: ast.AST) -> set[int]:
    """Lines that open a file for reading by themselves."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        named = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        of_a_path = isinstance(node.func, ast.Attribute)
        first = next((a.value for a in node.args if isinstance(a, ast.Constant)), "r")
        if (named in ("read_text", "read_bytes") and of_a_path) or (named == "open" and "r" in str(first)):
            found.add(node.lineno)
    return found


def opening() -> dict[str, set[int]]:
    found = {}
    for source in sources():
        name = source.path.removeprefix("paceline/")
        inside = name.split("/")[0] in ROOMS or name in LOOKS
        if inside and (lines := opens(source.tree)):
            found[name] = lines
    return found


def test_files_that_a_config_names_are_opened_at_the_one_door() -> None:
    others = {name: sorted(lines) for name, lines in opening().items() if name not in OWN}
    assert others == {}, (
        "use core.files.open_file, open_text or read_text; or say here why the file is Paceline's own"
    )
    assert sorted(OWN.keys() - opening().keys()) == [], "opens nothing: take it out"


def test_the_scan_sees_what_opens() -> None:
    tree = ast.parse("p.read_text()\np.open('rb')\nopen(p)\nread_text(p)\np.open('w')\nopen_file(p)")
    assert opens(tree) == {1, 2, 3}
