"""Every way out of a process is redacted, at one place; what is new has to pass it too."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from paceline.config import migrations
from paceline.config.load import load_config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.core.security.file_permissions import written_for, written_into
from paceline.core.security.secrets import SHAPES, secrets_in, without_secrets
from paceline.launch.claim_run_dir import claim
from paceline.launch.program import RedactedStream, redacted
from paceline.runlog.redact import Redactor
from paceline.runlog.result import write_result

CANARY = "canary-7h5g3f1d"
SHAPED = [
    "hf_" + "aB3" * 12,
    "sk-proj-" + "aB3_-" * 8,
    "sk-" + "aB3" * 12,
    "ghp_" + "aB3" * 12,
    "glpat-" + "aB3" * 8,
    "AKIA" + "ABCD0123" * 2,
    "AIza" + "aB3_-" * 7,
    "xoxb-1234567890-abcdef",
    "nvapi-" + "aB3" * 14,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz",
]


@pytest.mark.parametrize("secret", SHAPED)
def test_what_has_the_shape_of_a_token_is_blotted_out_wherever_it_stands(secret: str) -> None:
    redact = Redactor()
    for text in (
        "{}",
        "ValueError: '{}'",
        "url?token={}&x=1",
        '{{"a": "{}"}}',
        "Authorization: Bearer {}",
        "({})",
    ):
        assert secret not in redact(text.format(secret)), text
    assert json.loads(json.dumps(redact.data({"a": [secret, {secret: 1}], "n": 1.5}))) == {
        "a": ["***", {"***": 1}],
        "n": 1.5,
    }


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://me:pw1@h/x", "https://***@h/x"),
        ("postgres://:pw1@h", "postgres://***@h"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic ***"),
        ("{'Authorization': 'Bearer abcdefgh'}", "{'Authorization': 'Bearer ***'}"),
        ("bearer 0123456789abcdef", "bearer ***"),
        ("wandb: " + "a1" * 20, "wandb: ***"),
        ('WANDB_API_KEY="' + "a1" * 20 + '"', 'WANDB_API_KEY="***"'),
        *(
            (text, text)
            for text in (
                "commit " + "a1" * 20,
                "pad_token: <|im_end|>",
                "bearer market",
                "https://h/x:y@z",
                "a@b.c:d",
                "sk-learn",
                "hf_model",
                "step 12/100  loss 0.5",
            )
        ),
    ],
)
def test_what_stands_beside_a_secret(text: str, left: str) -> None:
    assert Redactor()(text) == left


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_the_table_is_known_to_the_redactor(shape: str) -> None:
    assert any(Redactor()(secret) == "***" for secret in SHAPED) and SHAPES[shape]


def test_secrets_by_name(tmp_path: Path) -> None:
    there = tmp_path / "key.pem"
    there.write_text("x")
    environ = {
        "HF_TOKEN": "a" * 8,
        "WANDB_API_KEY": "b" * 8,
        "AWS_SECRET_ACCESS_KEY": "c" * 8,
        "PGPASSWORD": "d" * 8,
        "MYSQL_PWD": "e" * 8,
        "DB_PASS": "f" * 8,
        "GH_PAT": "g" * 8,
        "MY_KEY": "H" * 8,
        "KEY": "I" * 8,
        "github_token": "j" * 8,
        "API_KEY_2": "k" * 8,
        "HTTP_PROXY": "http://u:" + "l" * 8 + "@h:1",
        "SSH_KEY": "-----BEGIN-----\n" + "m" * 24 + "\n-----END-----",
        "PWD": "/canary/pwd",
        "PATH": "/usr/bin",
        "TOKENIZERS_PARALLELISM": "falsefalse",
        "TOKENIZER_PATH": "canary/model",
        "KEYBOARD": "us-international",
        "SSH_KEY_PATH": str(there),
        "HF_TOKEN_PATH": str(there),
        "MONKEY": "bananas-and-nuts",
        "PROJECT_KEY": "alpha-team",
        "AUTH_TYPE": "password",
        "BYPASS": "everything-here",
        "USER": "somebody-else",
        "SHORT_TOKEN": "abc",
    }
    assert set(secrets_in(environ)) == {*(c * 8 for c in "abcdefgHIjkl"), "m" * 24, environ["SSH_KEY"]}
    assert set(secrets_in(environ, certain=True)) == {*(c * 8 for c in "abcdefgjkl")}
    left = without_secrets({"PATH": "/usr/bin", "HF_TOKEN": CANARY, "COPY": f"x{CANARY}y"})
    assert left == {"PATH": "/usr/bin"}


def test_every_text_of_a_finding_is_redacted() -> None:
    redact = Redactor([CANARY])
    finding = Diagnostic("a.b", CANARY, CANARY, CANARY, CANARY, evidence={CANARY: [CANARY, {"x": CANARY}]})
    assert CANARY not in json.dumps(redact.diagnostic(finding).to_json())
    assert redact.diagnostic(finding).code == "a.b"


def test_streams_are_redacted_while_a_main_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("A_TOKEN", CANARY)

    @redacted
    def main(ends: bool) -> int:
        print("said", CANARY)
        sys.stderr.writelines([f"{CANARY}\n", SHAPED[0]])
        assert (
            isinstance(sys.stdout, RedactedStream) and not sys.stdout.isatty() and sys.stdout.write("x") == 1
        )
        if ends:
            raise SystemExit(3)
        return 5

    assert main(False) == 5 and sys.stdout is out
    with pytest.raises(SystemExit):
        main(True)
    assert (
        sys.stdout is out
        and CANARY not in out.getvalue() + err.getvalue()
        and SHAPED[0] not in err.getvalue()
    )


@pytest.mark.parametrize(
    ("argv", "config"),
    [
        (["train", f"no-{CANARY}.yaml"], ""),
        (["plan", "c.yaml"], f"trainin: {{learning_rate: {CANARY}}}"),
        (["plan", "c.yaml"], f"training: {{learning_rate: {CANARY}}}"),
        (["plan", "c.yaml"], f"a: [{CANARY}"),
        (["plan", "c.yaml", f"training.learning_rate={CANARY}"], "training: {}"),
        (["explain", CANARY], ""),
        ([CANARY], ""),
        (["plan", "c.yaml"], f"training: {{distributed_strategy: 'mod:{CANARY}'}}"),
        (["config", "show", "c.yaml"], f"training: {{run_name: x{CANARY}x}}"),
        (["plan", "c.yaml"], f"training: {{deepspeed: {{zero_optimization: {{stage: '{CANARY}'}}}}}}"),
        (["plan", "c.yaml"], f"data: {{train: [{{path: 'a{CANARY}'}}]}}"),
    ],
)
def test_no_message_of_the_command_line_holds_a_secret(
    argv: list[str],
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from paceline.cli.main import main

    (tmp_path / "c.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capfd.readouterr()
    assert ended.value.code != 0 and said.err
    assert CANARY not in said.out + said.err


def test_a_traceback_of_a_main_is_redacted(tmp_path: Path) -> None:
    code = (
        "import os\nfrom paceline.launch.program import redacted\n@redacted\ndef main(): raise"
        " ValueError(os.environ['A_TOKEN'])\nmain()"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "A_TOKEN": CANARY}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "ValueError: ***" in done.stderr and CANARY not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        f"training:\n  run_name: my-{CANARY}\n",
        f"training:\n  rollout: {{rewards: [{{name: 'a:b', options: {{x: [{CANARY}]}}}}]}}\n",
        f"data:\n  train: [{{path: 'data/{CANARY}'}}]\n",
        f"training:\n  rollout: {{rewards: [{{name: 'a:b', options: {{{CANARY}: 1}}}}]}}\n",
    ],
)
def test_a_config_with_a_secret_of_the_environment_is_refused_by_its_place(text: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    load_config(str(file), environ={"PATH": "x"})
    with pytest.raises(ConfigError) as caught:
        load_config(str(file), environ={"HF_TOKEN": CANARY})
    found = [d for d in caught.value.diagnostics if d.code == "sec.secret_value"]
    assert (
        found
        and CANARY not in str(caught.value)
        and "$HF_TOKEN" in found[0].what
        and "c.yaml:2" in found[0].where
    )
    load_config(str(file), environ={"PROJECT_KEY": "alpha-team"})
    with pytest.raises(ConfigError):
        load_config(None, [f"training.run_name={CANARY}"], {"HF_TOKEN": CANARY})


def test_what_a_run_writes_first_and_last_is_redacted(tmp_path: Path) -> None:
    run, redact = RunDir.at(tmp_path / "run"), Redactor([CANARY])
    (tmp_path / "c.yaml").write_text(f"# {CANARY}\nmodel: {{}}\n")
    claim(
        run,
        plan={"config": {}},
        config_file=str(tmp_path / "c.yaml"),
        overwrite=False,
        resume=False,
        redact=redact,
    )
    write_result(run, "failed", 1, {"checkpoint": CANARY}, [Diagnostic("a.b", CANARY)], redact=redact)
    assert json.loads(run.config_json.read_text()) == {migrations.KEY: migrations.newest()}
    assert "# ***" in run.config_yaml.read_text() and '"what": "***"' in run.result_json.read_text()
    assert not [p for p in run.root.rglob("*") if p.is_file() and CANARY in p.read_text()]


# --- who may read it


@pytest.mark.parametrize(
    ("access", "parent", "folder", "file"),
    [
        ("private", 0o755, 0o700, 0o600),
        ("private", 0o2775, 0o750, 0o640),
        ("group", 0o755, 0o750, 0o640),
        ("umask", 0o755, 0o755, 0o644),
    ],
)
def test_files_are_for_whom_the_config_says(
    access: str, parent: int, folder: int, file: int, tmp_path: Path
) -> None:
    team = tmp_path / "team"
    team.mkdir()
    team.chmod(parent)
    before = os.umask(0o022)
    try:
        with written_for(team / "outputs" / "run", access):
            (team / "outputs" / "run").mkdir(parents=True)
            (team / "outputs" / "run" / "x").write_text("x")
        assert os.umask(0o022) == 0o022
        with written_into(team / "outputs" / "run"):
            (team / "outputs" / "run" / "y").write_text("x")
    finally:
        os.umask(before)
    made = team / "outputs" / "run"
    assert [stat.S_IMODE(p.stat().st_mode) & 0o777 for p in (made, made / "x", made / "y")] == [
        folder,
        file,
        file,
    ]


def test_a_stricter_umask_stays(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with written_for(tmp_path, "umask"):
            (tmp_path / "x").write_text("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
