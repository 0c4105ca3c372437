"""What may stand under no key: a secret known by its shape, a variable that nobody expands. And what looks
so and is none.
"""

from __future__ import annotations

import json

import pytest

BASE = "model: {name_or_path: a/b}\ndata: {train: x.jsonl}\n"
TOKENS = {
    "hugging face": "hf_" + "aB3" * 12,
    "openai": "sk-proj-" + "aB3_x" * 8,
    "old openai": "sk-" + "aB3" * 16,
    "anthropic": "sk-ant-" + "aB3-x" * 8,
    "github": "ghp_" + "aB3" * 12,
    "github pat": "github_pat_" + "aB3_x" * 8,
    "aws": "AKIA" + "ABCD1234" * 2,
    "slack": "xoxb-1234567890-abcdefgh",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXRoZXJl",
    "private key": "-----BEGIN RSA PRIVATE KEY-----",
    "gitlab": "glpat-" + "aB3" * 8,
}
HEX = "0123456789abcdef0123456789abcdef01234567"


def secrets(found):
    return [d for d in found.diagnostics if d.code == "sec.secret_on_cli"]


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize(
    "where",
    [
        "yaml",
        "nested",
        "list",
        "unknown",
        "key",
        "cli",
        "environment",
        "deepspeed",
        "accelerate",
        "factory",
        "number",
    ],
)
def test_a_token_is_known_by_its_shape_wherever_it_stands(refuse, tmp_path, token: str, where: str) -> None:
    text, overrides, environ, line = BASE, [], {}, 3
    if where == "yaml":
        text += f"training: {{run_name: '{token}'}}\n"
    elif where == "nested":
        text += f"training:\n  strategy_options:\n    a: {{b: 'x {token} y'}}\n"
        line = 5
    elif where == "list":
        text += f"training:\n  report_to:\n  - none\n  - '{token}'\n"
        line = 6
    elif where == "unknown":
        text += f"my_section: {{whatever: '{token}'}}\n"
    elif where == "key":
        text += f"training: {{strategy_options: {{'{token}': 1}}}}\n"
    elif where == "cli":
        overrides = [f"training.experiment_name='{token}'"]
    elif where == "environment":
        environ = {"PACELINE_TRAINING__RUN_NAME": token}
    elif where == "deepspeed":
        (tmp_path / "f.json").write_text(
            json.dumps({"train_batch_size": "auto", "comment": {"a": [token]}}, indent=1)
        )
        text += "training: {deepspeed: f.json}\n"
    elif where == "accelerate":
        (tmp_path / "f.yaml").write_text(f"distributed_type: 'NO'\nmain_training_function: '{token}'\n")
        text += "training: {accelerate_config: f.yaml}\n"
    elif where == "factory":
        text = f"model_name_or_path: a/b\ndataset: x.jsonl\nstage: sft\ndo_train: true\nrun_name: '{token}'\n"
        line = 5
    elif where == "number":  # the message about another misfit of the same value must not print it
        text += f"training: {{learning_rate: '{token}'}}\n"
    error = refuse(text, *overrides, environ=environ)
    assert token not in str(error)
    found = secrets(error)
    assert len(found) == 1, str(error)
    if where not in ("cli", "environment", "deepspeed", "accelerate"):
        assert found[0].where.endswith(f"config.yaml:{line}")
    elif where in ("deepspeed", "accelerate"):
        assert "/f." in found[0].where and found[0].where.rpartition(":")[2].isdigit()


@pytest.mark.parametrize("key", ["run_name", "experiment_name"])
def test_an_old_wandb_key_is_known_beside_its_name(refuse, load, key: str) -> None:
    assert secrets(refuse(BASE + f"training:\n  strategy_options: {{wandb_login: {HEX}}}\n"))
    load(BASE + f"training: {{{key}: {HEX}}}\n")  # a commit or a hash


@pytest.mark.parametrize(
    "text",
    [
        f"model: {{name_or_path: a/b, revision: {HEX}}}\ndata: {{train: x.jsonl}}\n",
        "model: {name_or_path: /data/hf_cache/models--sk-learn--big}\ndata: {train: x.jsonl}\n",
        (
            "model: {name_or_path: a/hf_transformer_model_v2}\ndata: {train:"
            " task-1234567890abcdef1234567890abcdef.jsonl}\n"
        ),
        BASE + f"training: {{output_dir: outputs/sha256-{HEX}{HEX[:24]}}}\n",
        BASE + "training: {run_name: 2024-11-03-akia-run, output_dir:"
        " s/risk-averse-agent-with-a-very-long-name-here}\n",
        BASE + "lora: {target_modules: 'model\\.layers\\.\\d+\\.(q_proj|v_proj)$'}\n",
        BASE + "lora: {target_modules: [q_proj, v_proj]}\n",
        (
            "model: {name_or_path: a/b, chat_template: '{% for m in messages %}${{ m.content }} $PRICE{%"
            " endfor %}'}\ndata: {train: x.jsonl}\n"
        ),
        "model: {name_or_path: a/b, add_special_tokens: ['$START', '<|im_end|>']}\ndata: {train: x.jsonl}\n",
        BASE + "training: {run_name: cost 5$ per run, output_dir: 'a%b/100%'}\n",
        BASE + "training: {run_name: 'a \\$HOME of its own'}\n",
        BASE + "training: {output_dir: ~/runs/x}\n",
        BASE + 'training: {strategy_options: {pattern: "^\\\\$[A-Z]+$"}}\n',
    ],
)
def test_no_false_alarm(load, text: str) -> None:
    load(text)


PLACES = ["yaml", "list", "free", "cli", "environment", "deepspeed"]


@pytest.mark.parametrize("where", [place for place in PLACES if place not in ("yaml", "list", "free")])
def test_a_default_is_read_in_a_yaml_alone(refuse, tmp_path, where: str) -> None:
    test_a_variable_is_refused_by_name(refuse, tmp_path, "${NAME:-x}", "${NAME:-x}", where)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("${HOME}", "${HOME}/runs"),
        ("$USER", "/data/$USER/runs"),
        ("${HF_TOKEN}", "${HF_TOKEN}"),
        ("%USERPROFILE%", "%USERPROFILE%\\runs"),
        ("$(hostname)", "runs/$(hostname)"),
        ("$SLURM_JOB_ID", "job-$SLURM_JOB_ID"),
        ("$home", "$home/x"),
        ("${{ secrets.X }}", "${{ secrets.X }}"),
        ("$HOME", "$HOME"),
    ],
)
@pytest.mark.parametrize("where", PLACES)
def test_a_variable_is_refused_by_name(refuse, tmp_path, variable: str, value: str, where: str) -> None:
    text, overrides, environ = BASE, [], {}
    quoted = "'" + value + "'"
    if where == "yaml":
        text += f"training:\n  output_dir: {quoted}\n"
    elif where == "list":
        text = f"model: {{name_or_path: a/b}}\ndata:\n  train:\n  - {{path: {quoted}}}\n"
    elif where == "free":
        text += f"training:\n  strategy_options: {{folder: {quoted}}}\n"
    elif where == "cli":
        overrides = [f"training.output_dir={value}"]
    elif where == "environment":
        environ = {"PACELINE_TRAINING__OUTPUT_DIR": value}
    else:
        zero = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": value}}}
        (tmp_path / "f.json").write_text(json.dumps(zero, indent=1))
        text += "training: {deepspeed: f.json}\n"
    (found,) = [
        d for d in refuse(text, *overrides, environ=environ).diagnostics if d.code == "config.variable"
    ]
    assert variable in found.what
    assert found.hint
    places = {
        "yaml": "config.yaml:4",
        "list": "config.yaml:4",
        "free": "config.yaml:4",
        "cli": "command line training.output_dir",
        "environment": "environment PACELINE_TRAINING__OUTPUT_DIR",
        "deepspeed": "f.json:6",
    }
    assert found.where.endswith(places[where])


@pytest.mark.parametrize(
    ("written", "expands"),
    [
        ("%USERNAME%", "${USERNAME}"),
        ("${oc.env:USER_DIR}", "${USER_DIR}"),
        ("${env:SCRATCH}", "${SCRATCH}"),
        ("$SCRATCH", "$SCRATCH"),
        ("${model.name}", ""),
        ("${{ x.y }}", ""),
    ],
)
def test_the_command_line_that_is_offered_is_one_that_a_shell_expands(
    written: str, expands: str, refuse
) -> None:
    (found,) = [
        d
        for d in refuse(f"training:\n  output_dir: '/runs/{written}/a'\n").diagnostics
        if d.code == "config.variable"
    ]
    assert found.hint.endswith(f'"…output_dir=/runs/{expands}/a"' if expands else "the value itself")


def test_a_token_by_its_variable_is_refused_too(refuse) -> None:
    (found,) = refuse(BASE + "training: {hub_token: '${HF_TOKEN}'}\n").diagnostics
    assert (found.code, found.hint[:15]) == ("config.variable", "remove the line")


def test_home_is_answered_with_a_tilde(refuse) -> None:
    (found,) = refuse(BASE + "training: {output_dir: '${HOME}/runs'}\n").diagnostics
    assert found.hint == "output_dir: ~/runs"


def test_a_template_that_is_a_path_is_looked_at(refuse) -> None:
    text = "model: {name_or_path: a/b, chat_template: '${HOME}/chat.jinja'}\ndata: {train: x.jsonl}\n"
    assert [d.code for d in refuse(text).diagnostics] == ["config.variable"]


def test_a_block_of_anchors_is_read_and_said(load) -> None:
    loaded = load("x-common: &common\n  seed: 7\n" + BASE + "training:\n  <<: *common\n  max_steps: 3\n")
    assert loaded.config.training.seed == 7
    (note,) = [n for n in loaded.notes if n.code == "config.extension"]
    assert note.where.endswith("config.yaml:1")


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("PACELINE_TRAINING_LEARNING_RATE", True),
        ("PACELINE_DATA_MAX_LENGTH", True),
        ("PACELINE_TRAINING_LERNING_RATE", False),
        ("PACELINE_MODEL_ZOO", False),
    ],
)
def test_one_underscore_is_named(load, refuse, name: str, refused: bool) -> None:
    environ = {name: "1", "PACELINE_CACHE": "/tmp/x", "PACELINE_VENV": "x"}
    said = refuse(BASE, environ=environ).diagnostics if refused else load(BASE, environ=environ).notes
    (found,) = [d for d in said if d.code == "config.unknown_variable"]
    assert name in found.what and "PACELINE_TRAINING__" in found.hint or "__" in found.hint


def test_the_place_of_a_secret_is_none_itself_also_on_the_command_line(load, refuse) -> None:
    loaded = load(BASE, "launch.secrets.HF_TOKEN=/etc/hub")
    assert loaded.config.launch.secrets == {"HF_TOKEN": "/etc/hub"}
    assert secrets(refuse(BASE, "launch.env.HF_TOKEN=/etc/hub"))
