"""Python that comes with a model runs only as it was read: a folder's by the digest of its files, a hub
name's by its commit, and nobody else's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from paceline.config.load import load_config
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.security.remote_code import check_code, read_code, unpinned
from paceline.rules import check, of_config
from paceline.rules.rule import Facts

COMMIT = "0123456789" * 4
AUTO_MAP = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.XForCausalLM"}
CONFIGURATION = "from transformers import LlamaConfig\nclass XConfig(LlamaConfig):\n    model_type = 'x'\n"
MODELING = (
    "import os\nfrom transformers import LlamaForCausalLM\nfrom .configuration_x import XConfig\nfrom"
    " .helper_x import word\nopen(os.environ['MARK'], 'a').write(word + ' ')\nclass"
    " XForCausalLM(LlamaForCausalLM):\n    config_class = XConfig\n"
)
SHAPE = {
    "model_type": "x",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}


def write_model(folder: Path, word: str = "good", auto_map: Any = None) -> Path:
    """A folder whose model is of a class of its own, which says ``word`` when it is run."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "auto_map": auto_map or AUTO_MAP}))
    (folder / "configuration_x.py").write_text(CONFIGURATION)
    (folder / "modeling_x.py").write_text(MODELING)
    (folder / "helper_x.py").write_text(f"word = '{word}'\n")
    return folder


def refusal(folder: Path, revision: str | None) -> Any:
    config = Config.model_validate(
        {"model": {"name_or_path": str(folder), "trust_remote_code": True, "revision": revision}}
    )
    return next((d for d in check(config, Facts()) if d.code == "sec.trust_remote_code"), None)


def test_a_folder_is_pinned_by_what_would_run(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    found = refusal(folder, COMMIT)
    assert found is not None, "a commit says nothing about files that lie here"
    digest = read_code(folder).digest
    assert (
        f"revision: {digest}" in found.hint
        and "modeling_x.py (changed" in found.found
        and "helper_x.py" in found.found
    )
    assert refusal(folder, None) is not None and refusal(folder, digest) is None
    (folder / "model.safetensors").write_bytes(b"weights are not code")
    (folder / "config.json").write_text(json.dumps({**SHAPE, "vocab_size": 321, "auto_map": AUTO_MAP}))
    assert refusal(folder, digest) is None, "what is no code may change"


@pytest.mark.parametrize(
    "change", ["edit", "helper", "add", "remove", "rename", "inside", "link", "auto_map", "tokenizer"]
)
def test_whatever_changes_in_the_code_is_refused_by_name(change: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    digest = read_code(folder).digest
    later = os.stat(folder).st_mtime + 100
    if change in ("edit", "helper"):
        changed = folder / ("modeling_x.py" if change == "edit" else "helper_x.py")
        changed.write_text(changed.read_text() + " ")
        os.utime(changed, (later, later))
    elif change == "add":
        (folder / "new_x.py").write_text("")
    elif change == "remove":
        (folder / "helper_x.py").unlink()
    elif change == "rename":
        (folder / "helper_x.py").rename(folder / "helper_y.py")
    elif change == "inside":
        (folder / "sub").mkdir()
        (folder / "sub" / "x.py").write_text("")
    elif change == "link":
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "x.py").write_text("")
        (folder / "sub").symlink_to(tmp_path / "outside")
    elif change == "auto_map":
        (folder / "config.json").write_text(
            json.dumps({**SHAPE, "auto_map": {**AUTO_MAP, "AutoTokenizer": ["a.B", None]}})
        )
    else:
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"auto_map": {"AutoTokenizer": ["helper_x.B", None]}})
        )
    found = refusal(folder, digest)
    assert found is not None and "has changed since" in found.what and read_code(folder).digest in found.hint
    if change in ("edit", "helper"):
        newest = found.found.partition("contains ")[2]
        assert newest.startswith(f"{changed.name} (changed"), "the newest first: it is the one that changed"
    with pytest.raises(ConfigError, match="has changed since"):
        check_code(str(folder), digest)


def test_code_that_goes_on_elsewhere_cannot_be_pinned_here(tmp_path: Path) -> None:
    folder = write_model(
        tmp_path / "m", auto_map={"AutoModelForCausalLM": "someone/else--modeling_x.XForCausalLM"}
    )
    found = refusal(folder, read_code(folder).digest)
    assert found is not None and "someone/else" in found.found
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "config.json").write_text(json.dumps(SHAPE))
    assert unpinned(str(tmp_path / "plain"), None) is None, "nothing there would run"
    assert unpinned("org/model", "main") is not None and unpinned("org/model", COMMIT) is None
    assert unpinned("org/model", "F" * 40) is not None and unpinned("org/model", f"x{COMMIT}") is not None


@pytest.mark.parametrize("name", ["evil/kernel", "evil/kernel@main", "evil/kernel:attn"])
def test_an_attention_of_the_hub_is_code(name: str, tmp_path: Path) -> None:
    from paceline.models.loading.model_source import load_hf_config

    (tmp_path / "c.yaml").write_text(f"model: {{name_or_path: m, attn_implementation: '{name}'}}\n")
    with pytest.raises(ConfigError, match="sec.attention_kernel"):
        load_config(str(tmp_path / "c.yaml"), rules=of_config)
    (tmp_path / "m").mkdir()
    for key in ("attn_implementation", "_attn_implementation"):
        (tmp_path / "m" / "config.json").write_text(json.dumps({**SHAPE, "model_type": "llama", key: name}))
        model = Config.model_validate({"model": {"name_or_path": str(tmp_path / "m")}}).model
        with pytest.raises(ConfigError, match="sec.attention_kernel"):
            load_hf_config(model)


LOADS = f"""
import os, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from pathlib import Path
from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.security.remote_code import read_code
from paceline.models.factory import HFModelFactory
from paceline.models.loading.materialize import skeleton
from paceline.protocols.roles import Role
from paceline.models.loading.model_source import code_options, load_hf_config
from transformers import AutoModelForCausalLM
place, commit = Path(sys.argv[1]), sys.argv[2]
def said():
    mark = Path(os.environ["MARK"]); text = mark.read_text() if mark.exists() else ""; mark.unlink(missing_ok=True); return text.split()
def model(**given): return Config.model_validate({{"model": given}}).model
def attempt(act):
    try: act(); return "ran " + ",".join(sorted(set(said())))
    except ConfigError as error: return error.diagnostics[0].code + " " + ",".join(said())
def build(m): load_hf_config(m); skeleton(AutoModelForCausalLM, load_hf_config(m), "sdpa", code_options(m))
local = str(place / "local")
digest = read_code(Path(local)).digest
print("off", attempt(lambda: build(model(name_or_path=local))))
print("commit", attempt(lambda: build(model(name_or_path=local, trust_remote_code=True, revision=commit))))
print("digest", attempt(lambda: build(model(name_or_path=local, trust_remote_code=True, revision=digest))))
(place / "local" / "helper_x.py").write_text("word = 'changed'")
print("changed", attempt(lambda: build(model(name_or_path=local, trust_remote_code=True, revision=digest))))
print("hub", attempt(lambda: build(model(name_or_path="org/pinned", trust_remote_code=True, revision=commit))))
try: print("elsewhere", attempt(lambda: build(model(name_or_path="org/borrows", trust_remote_code=True, revision=commit))))
except OSError as error: print("elsewhere", "not found", ",".join(said()))
from paceline.generation.answer import load_folder
sys.stdin = open(0)
print("chat", attempt(lambda: load_folder(place / "local")))
from paceline.training.preflight.named_models import check_reward_model
print("reward", attempt(lambda: check_reward_model(local, place / "local")))
# A reference beside the policy, or the meta start of FSDP after rank 0's load: the class is registered by then.
from paceline.config.sections.model import ModelSection
from paceline.protocols.model import BuildOptions
import torch
twice = str(place / "twice_built")
pinned = ModelSection(name_or_path=twice, trust_remote_code=True, revision=read_code(Path(twice)).digest)
roots = [HFModelFactory(pinned)(BuildOptions(device=torch.device("meta"))) for _ in range(2)]
print("twice", *(type(root.hf).__name__ for root in roots))
"""  # noqa: E501


def test_what_runs_when_models_are_built(tmp_path: Path) -> None:
    """In a process of its own, with a hub's cache in which the branch has moved on from the pinned commit."""
    write_model(tmp_path / "local")
    write_model(tmp_path / "twice_built")
    cache, other = tmp_path / "hub", "f" * 40
    for name, at_commit, moved, maps in (
        ("pinned", "pinned", "moved", AUTO_MAP),
        ("lent", "unused", "moved", AUTO_MAP),
        ("borrows", "own", "own", {k: f"org/lent--{v}" for k, v in AUTO_MAP.items()}),
    ):
        repo = cache / f"models--org--{name}"
        if name != "lent":
            write_model(repo / "snapshots" / COMMIT, at_commit, maps)
        write_model(repo / "snapshots" / other, moved, maps)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(other)
    env = {
        **os.environ,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "MARK": str(tmp_path / "mark"),
    }
    argv = [sys.executable, "-c", LOADS, str(tmp_path), COMMIT]
    done = subprocess.run(argv, env=env, input="y\ny\ny\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[lines.index("off models.cannot_load ") :] == [
        "off models.cannot_load ",
        "commit sec.trust_remote_code ",
        "digest ran good",
        "changed sec.trust_remote_code ",
        "hub ran pinned",
        "elsewhere models.cannot_load ",
        "chat generation.no_model ",
        "reward rewards.model ",
        "twice XForCausalLM XForCausalLM",
    ]


def test_a_pin_is_of_one_model() -> None:
    """Other models of a run, and a tokenizer from elsewhere, run no code."""
    from types import SimpleNamespace

    from paceline.training.run.model_factories import Models

    model = {"name_or_path": "org/a", "trust_remote_code": True, "revision": COMMIT}
    for name, trusts in (("org/b", False), ("org/a", True)):
        training = {"algorithm": "dpo", "dpo": {"ref_model": name}}
        config = Config.model_validate({"model": model, "training": training})
        plan: Any = SimpleNamespace(algorithm="dpo")
        from paceline.protocols.roles import Role

        named = Models(plan, config, None, None)._named(Role.REFERENCE)  # type: ignore[arg-type]
        if named is not None:
            assert named.trust_remote_code is trusts and named.revision == (COMMIT if trusts else None)


def test_a_tokenizer_runs_code_only_from_the_pinned_folder(tmp_path: Path) -> None:
    from paceline.data.tokenizer.load import tokenizer_spec

    folder = write_model(tmp_path / "m")
    (folder / "tokenizer.json").write_text("{}")
    digest = read_code(folder).digest
    pinned = {"name_or_path": str(folder), "trust_remote_code": True, "revision": digest}
    other = write_model(tmp_path / "t")
    (other / "tokenizer.json").write_text("{}")
    specs = [
        tokenizer_spec(Config.model_validate({"model": m}).model)
        for m in (pinned, {**pinned, "tokenizer": str(other)}, {"name_or_path": str(folder)})
    ]
    assert [spec.code_revision for spec in specs] == [digest, None, None]
    with pytest.raises(ConfigError, match="has changed since"):
        (folder / "helper_x.py").write_text("")
        tokenizer_spec(Config.model_validate({"model": pinned}).model)


def test_what_a_stranger_left_in_a_run_or_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    """A run's config.json names a folder with code and its very pin: whoever looks at the run does not run
    it.
    """
    from paceline.core.rundir import RunDir
    from paceline.training import exact_match

    folder = write_model(tmp_path / "m")
    model = {"name_or_path": str(folder), "trust_remote_code": True, "revision": read_code(folder).digest}
    config = Config.model_validate({"model": model})
    seen: list[Any] = []

    class Stop(Exception):
        pass

    def looked(model: Any) -> None:
        seen.append(model.trust_remote_code)
        raise Stop

    run = RunDir.at(tmp_path / "run")
    run.root.mkdir()
    run.config_json.write_text(json.dumps(config.to_json()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_match, "load_tokenizer", looked)
        listed = type("Listed", (), {"problem": None, "name": "step-00000001", "path": run.root})
        patch.setattr(exact_match, "scan", lambda folder: [listed])
        patch.setattr(exact_match, "read_state", lambda path: {})
        with pytest.raises(Stop):
            exact_match.answer_run(run, [], initial=False, last=False, sampling=None)  # type: ignore[arg-type]
    assert seen == [False]
    from paceline.checkpoint.export.hf_folder import config_of

    class Reader:
        path = tmp_path

        def side_files(self) -> list[str]:
            return ["config.json"]

        def side_json(self, name: str) -> dict[str, Any]:
            return {**SHAPE, "attn_implementation": "evil/kernel", "_attn_implementation": "e/k"}

    assert not [key for key in config_of(Reader(), "float32") if "attn" in key]  # type: ignore[arg-type]


def test_a_folder_that_strangers_can_write_is_named(tmp_path: Path) -> None:
    from paceline.core.security.file_permissions import open_to_strangers

    tmp_path.chmod(0o700)
    assert (
        open_to_strangers(tmp_path / "not" / "there") == ""
        and open_to_strangers(Path("/tmp/not-there")) == ""
    )
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "is writable by every user" in open_to_strangers(tmp_path / "open" / "run")
    (tmp_path / "open").chmod(0o1777)
    assert open_to_strangers(tmp_path / "open" / "run") == ""
    if os.geteuid() == 0:
        os.chown(tmp_path / "open", 12345, 12345)
        assert "uid 12345" in open_to_strangers(tmp_path / "open")
