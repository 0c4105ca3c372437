"""A script's command means what bash makes of it: the program gets the same arguments."""

from __future__ import annotations

import random
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import import_command
from paceline.config.import_export.verdicts import KeyVerdict
from paceline.core.errors import ConfigError

STUB = '#!/bin/sh\nfor a in "$@"; do printf "%s\\0" "$a"; done >> "$ARGUMENTS"\n'
VALUES = [
    "1",
    "1e-4",
    "'two words'",
    '"a $SIZE b"',
    "${SIZE}",
    "$SIZE",
    "a\\ b",
    "'#no'",
    "x#y",
    '"# kept"',
    "''",
    "'$SIZE'",
    '"it\'s"',
    "a'b'c",
    "alpaca#500",
    "$(echo 5)",
    "x;y",
    "'[1, 2]'",
]
ENDS = ["", "", "  # a comment", " > log.txt", " 2>&1 | tee log", " && echo done", " &"]
BETWEEN = [" \\\n", " \\\n    ", " ", "  \\\n", ' \\\n"" \\\n']
BREAKS = [" \\\n# --lr 5 \\\n", " \\\n  #--x \\\n ", " \\\n\n"]


def script(draw: random.Random, broken: bool) -> str:
    flags = [
        f"--{name} {draw.choice(VALUES)}" if draw.random() < 0.8 else f"--{name}"
        for name in draw.sample(["learning_rate", "max_length", "output_dir", "seed", "model", "dataset"], 5)
    ]
    text = "swift sft " + flags[0]
    at = draw.randrange(1, len(flags)) if broken else 0
    for number, flag in enumerate(flags[1:], 1):
        text += draw.choice(BREAKS if number == at else BETWEEN[:4]) + flag
    before = draw.choice(["", "# --seed 3 \\\n", "set -e\n\n", "export OTHER='a\nb'\n"])
    text = draw.choice(["", "", "", "cd . && ", "true; "]) + text + draw.choice(["", "", " $MORE"])
    return f"#!/bin/bash\nSIZE=13B\nMORE='--lora_rank 4 --lora_alpha 8'\n{before}{text}{draw.choice(ENDS)}\n"


STATEMENTS = [
    *("A=(--lora_rank 4 --seed 3)", "A+=(--max_length 5)", "A=(x 'y z' $N)", "N=$((N + 1))", "N=$((-7/2))"),
    *("N=$(( (N*7)/2 - -3 ))", "N=$((-7%3))", "M=$(expr $N \\* 2)", "M=`expr 7 / 2`", "N=$((2**3-N))"),
    *('set -- --weight_decay 0.1 "a b"', "shift", "Q='a b'", 'Q="$Q c"', "Q+=x", "export E=$N", "unset Q"),
    *("true && N=9", "false || N=8", "false && N=7", '[ -n "$N" ] && N=5', "if true; then N=6; fi"),
    *("for i in 1 2; do N=$i; done", "(N=77)", "N=3 | cat", "f() { N=44; }", "f", ": ${D:=5}", "eval N=12"),
    *("read N <<< 4", "((N++))", "let N=N+1", "case $N in 1|2) N=50;; *) N=51;; esac", "{ N=61; }", "N=2+3"),
    *('echo "swift sft --x"', "W=~/x", "while false; do N=1; done", "declare -i N=2+3", "cd . && N=33"),
    *(
        "N=34 && M=35",
        "# swift sft --seed",
        "cat > x.txt <<EOF\nswift sft --no $N it's\nEOF",
        "M='a,b' IFS=x",
    ),
    *(
        "cat <<'EOF' > y.txt\nit's \"$N\nEOF",
        "N=1 true",
        "sleep 0 &",
        "N=7 # N=8",
        "set -e",
        'N="4 5"',
        "IFS=,",
    ),
    *("if [[ $N == 3 && -n $M ]]; then\n  N=10\nelse\n  N=11\nfi", "pip install swift", "N=$(date +%s)"),
    *(
        "function g { N=3; }; g",
        "printf -v N 7",
        "true || N=20 && N=21",
        "N=08",
        "M=$N",
        "N=${M:-3}",
        "(exit 3)",
    ),
]
WORDS = [
    *(
        "$N",
        '"$N"',
        "${N}",
        "${N:-4}",
        '"${A[@]}"',
        "${A[@]}",
        "${#A[@]}",
        "${A[1]}",
        "$M",
        '"$Q"',
        "$Q",
        '"$@"',
    ),
    *(
        "$#",
        "$1",
        "$((N*2))",
        "$((N/2))",
        "$((128*2))",
        "$(expr $N + 1)",
        "${D-7}",
        "${D:+x}",
        "~",
        "~/m",
        "~x",
    ),
    *(
        "a{1,2}",
        "{1..3}",
        "'{1,2}'",
        "*.none",
        "*.sh",
        '"*.sh"',
        "$'a\\tb'",
        "\\$N",
        '"\\$N"',
        '"a\\nb"',
        "a\\ b",
    ),
    *(
        "${Q// /_}",
        "$(date)",
        '"$W"',
        "[a]",
        "x=~/y",
        "$HOME",
        '"line \\\n  next"',
        "'two\nlines'",
        "${Q:-a b}",
    ),
    *(
        '"${Q:-a b}"',
        '${Q:-"a b"}',
        '"${A[*]}"',
        "$A",
        "${N}x$M",
        "\"$N\"'$N'",
        "$((N))$((M))",
        "$[1+1]",
        "${!N}",
    ),
    *(
        "`date`",
        "$(( 7 / 0 ))",
        "$((N > 3))",
        "<(date)",
        "a;",
        "x\\",
        "$",
        '"$"',
        "a$",
        "%",
        "!x",
        "^y",
        "a=b=$N",
    ),
]


def richer(draw: random.Random) -> str:
    lines = ["N=3", "M=4", "Q='q r'", "A=(1 2)"]
    lines += [draw.choice(STATEMENTS) for _ in range(draw.randrange(6))]
    flags = " ".join(
        f"--{name} {draw.choice(WORDS)}{draw.choice(['', '', f' {draw.choice(WORDS)}'])}"
        for name in draw.sample(
            ["learning_rate", "max_length", "output_dir", "seed", "model"], draw.randrange(1, 4)
        )
    )
    call = (
        f"{draw.choice(['', '', 'exec ', 'nohup ', 'X=1 ', 'env Y=2 '])}swift sft {flags}{draw.choice(ENDS)}"
    )
    block = draw.choice(
        ["{}"] * 8 + ["if true; then\n{}\nfi", "for i in 1 2; do {}\ndone", "( {}\n)", "g() {{\n{}\n}}"]
    )
    return "\n".join([*lines, block.format(call)]) + "\n"


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 60))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_script_is_taken_as_bash_runs_it_or_refused(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assignments, arrays, arithmetic, blocks and here-documents: never other arguments than bash's."""
    draw = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "swift"
    stub.write_text(STUB.replace("for a", "printf '\\1' >> \"$ARGUMENTS\"\nfor a"))
    stub.chmod(0o755)
    file, arguments = tmp_path / "run.sh", tmp_path / "arguments"
    environ = {"PATH": f"{stub.parent}:/usr/bin:/bin", "ARGUMENTS": str(arguments), "HOME": str(Path.home())}
    taken = 0
    for _ in range(40):
        arguments.write_text("")
        file.write_text(richer(draw))
        try:
            found = read_command([str(file)])
        except ConfigError:
            continue
        ran = subprocess.run(["bash", str(file)], cwd=tmp_path, env=environ, capture_output=True, timeout=240)
        if b"syntax error" in ran.stderr:
            continue
        for _ in range(100 if "&\n" in file.read_text() else 1):
            if arguments.read_bytes().endswith(b"\0"):
                break
            time.sleep(0.01)
        _, *calls = arguments.read_text().split("\1")
        if "set -e" in file.read_text() and not calls:
            continue  # a command before it fails
        assert len(calls) == 1, file.read_text()
        expected = read_command(["swift", *calls[0].split("\0")[:-1]])
        assert found.data == expected.data, file.read_text()
        taken += 1
    assert taken >= 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("N=2\nswift sft --a $(expr 16 / $N) --b $((128*2)) --c `expr 7 \\* $N`", "--a 8 --b 256 --c 14"),
        ('A=(--a 1\n --b "x y")\nA+=(--c)\nswift sft "${A[@]}"', "--a 1 --b 'x y' --c"),
        ('set -- --a 1\nswift sft "$@" > log 2>&1 &', "--a 1"),
        ("case $X in\n swift) echo;;\nesac\nconda activate swift\ncd swift; swift sft --a 1", "--a 1"),
        (
            "#SBATCH -N 2\n#SBATCH --gres=gpu:a100:4\nswift sft --a $SLURM_NNODES --b $SLURM_GPUS_ON_NODE",
            "--a 2 --b 4",
        ),
        ("cat > a.sh <<'EOF'\nswift sft --z it's\nEOF\nnohup conda run -n e swift sft --a 1 &", "--a 1"),
        ('axolotl preprocess x.yaml\nswift infer --model m\nswift sft --a "$1" --b ${2:-7}', "--a q --b 7"),
        ('srun bash -c "swift sft --a 1"', "--a 1"),
        ("A=2\nexport B=3\nbash -lc 'swift sft --a $1 --b $B' x 1", "--a 1 --b 3"),
        ("N=$(hostname)\nsrun --nodelist $N -o x-$SLURM_JOB_ID.log swift sft --a 1", "--a 1"),
        ("#SBATCH -N 2 --ntasks-per-node=4\nswift sft --a $SLURM_NTASKS", "--a 8"),
        ("python prepare.py --b 2\nif [ ! -d o ]; then mkdir o; fi\nswift sft --a 1", "--a 1"),
    ],
)
def test_scripts_that_are_taken(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"#!/bin/bash\n{text}\n")
    assert read_command([str(file), "q"]).data == read_command(["swift", "sft", *shlex.split(words)]).data


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("swift sft --a $(nproc)", 1, "another command prints: nproc"),
        ("N=$(date)\n\nswift sft --a $N", 3, "N is not certain (line 1): a value is what another command"),
        (
            "if true; then N=1; fi\nswift sft --a $N",
            2,
            "N is not certain (line 1): it stands inside `if` (line 1)",
        ),
        (
            'N=$(date)\nA="--a $N"\nB=($A)\nswift sft "${B[@]}"',
            4,
            "N is not certain (line 1): a value is what",
        ),
        ("for x in 1 2; do\nswift sft --a $x\ndone", 2, "inside `for` (line 1)"),
        ("source env.sh\nN=1\n. b.sh\nswift sft \\\n --a $N", 5, "`.` may set N"),
        ("swift sft --a 1 \\ \n --b 2", 2, "never gets them"),
        ("swift sft --a 1 --b \\ ", 1, "a backslash before a blank"),
        ("swift sft --a {1,2}", 1, "several words of {1,2}"),
        ("swift sft --a run.*", 1, "names of files"),
        ("swift sft --a 'b", 1, "not closed"),
        ("A=x-$(date)\nswift sft --a $A", 2, "A is not certain (line 1): a value is what another command"),
        ("A=($(date))\nswift sft --a ${#A[@]}", 2, "A is not certain (line 1)"),
        ("A=$(date)\nswift sft --a x${A:+1}", 2, "A is not certain (line 1)"),
        ("A=$(date)\nswift sft --a ${#A}", 2, "A is not certain (line 1)"),
        ("A=$(date)\nswift sft --a $((A + 1))", 2, "A is not certain (line 1)"),
        ("srun bash -c 'swift sft --a $(date)'", 1, "another command prints: date"),
        ("if true; then\nbash -c 'swift sft --a 1'\nfi", 2, "inside `if` (line 1)"),
        ("torchrun --nproc_per_node $SLURM_GPUS sft.py --a 1", 1, "SLURM_GPUS has no value"),
        ("torchrun --master_addr 1 sft.py --node_rank $SLURM_PROCID", 1, "SLURM_PROCID has no value"),
    ],
)
def test_scripts_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(f"{text}\n")
    with pytest.raises(ConfigError) as caught:
        read_command(["run.sh"])
    (found,) = caught.value.diagnostics
    assert found.where == f"run.sh:{line}" and why in found.render() and found.hint


SLURM = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
export GPUS_PER_NODE=8
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=$((29500 + $SLURM_JOBID % 1000))
export WORLD_SIZE=$(($GPUS_PER_NODE*$SLURM_NNODES))
LAUNCHER="accelerate launch --multi_gpu --num_machines $SLURM_NNODES --num_processes $WORLD_SIZE \\
 --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT --machine_rank $SLURM_PROCID"
CMD="trl/scripts/sft.py --model_name_or_path m --dataset_name d --seed 7"
"""


@pytest.mark.parametrize(
    "last", ['srun --jobid $SLURM_JOBID bash -c "$LAUNCHER $CMD"', "srun $LAUNCHER $CMD"]
)
def test_what_only_a_slurm_job_knows_stays_open_in_its_launchers_options(tmp_path: Path, last: str) -> None:
    """The address where ranks meet and a node's number change nothing of what is trained."""
    file = tmp_path / "run.sh"
    file.write_text(f"{SLURM}{last}\n")
    made = import_command(read_command([str(file)]))
    values = {path: setting.value for path, setting in made.settings.items()}
    assert (values["launch.nnodes"], values["launch.nproc"], values["training.seed"]) == (2, 8, 7)
    assert "launch.master_addr" not in values
    for name in ("main_process_ip", "main_process_port", "machine_rank"):
        finding = made.findings[f"accelerate launch --{name}"]
        assert finding.verdict is KeyVerdict.DIFFERS and "left open" in finding.says
    assert not [f.key for f in made.findings.values() if f.verdict is KeyVerdict.LOST]


def test_all_values_that_are_not_known_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("A=$(date)\nsrun swift sft --a $A --b $B \\\n --c $A --d $(nproc)\n")
    with pytest.raises(ConfigError) as caught:
        read_command([str(file)])
    whats = [found.what for found in caught.value.diagnostics]
    assert len(whats) == 3 and "A is not certain (line 1)" in whats[0]
    assert "variable B" in whats[1] and "nproc" in whats[2]


def test_a_file_that_the_script_writes_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    text = "N=3\ncat > lf.yaml <<EOF\nstage: sft\nseed: $N\nEOF\nllamafactory-cli train lf.yaml\n"
    file.write_text(text)
    found = import_command(read_command([str(file)]))
    assert (found.settings["training.seed"].value, found.settings["training.seed"].line) == (3, 4)
    file.write_text(text.replace("N=3", "N=$(date)"))
    with pytest.raises(ConfigError, match="only bash tells"):
        import_command(read_command([str(file)]))


@pytest.mark.parametrize("seed", range(60))
def test_a_script_gives_the_program_what_bash_gives_it(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "swift"
    stub.write_text(STUB)
    stub.chmod(0o755)
    file, arguments = tmp_path / "run.sh", tmp_path / "arguments"
    file.write_text(script(draw, broken=seed % 3 == 0))
    environ = {"PATH": f"{stub.parent}:/usr/bin:/bin", "ARGUMENTS": str(arguments)}
    subprocess.run(["bash", str(file)], cwd=tmp_path, env=environ, capture_output=True, timeout=240)
    for _ in range(100):  # "&" leaves it behind
        if arguments.is_file() and arguments.read_bytes().endswith(b"\0"):
            break
    got = arguments.read_text().split("\0")[:-1]
    expected = read_command(["swift", *got])
    try:
        found = read_command([str(file)])
    except ConfigError as error:
        broken = seed % 3 == 0 and "never gets them" in str(error)
        assert broken or ("another command" in str(error) and "$(" in file.read_text()), file.read_text()
        return
    assert seed % 3 or len(got) < 11, file.read_text()
    assert found.data == expected.data, file.read_text()


SET_OUTSIDE = """\
#!/bin/bash
export NNODES=2 \\
    NODE_RANK=1
MORE='--seed 3'
MASTER_PORT=29500 \\
NPROC_PER_NODE=4 \\
swift sft \\
    --model base \\
    --dataset \\
        rows.jsonl \\
    --packing true $MORE \\
    --load_data_args true
"""


@pytest.mark.parametrize("before", ["", "torchrun --nproc_per_node 2 \\\n--nnodes 3 "])
def test_every_finding_of_a_script_has_the_line_that_says_it(tmp_path: Path, before: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SET_OUTSIDE.replace("swift sft", f"{before}swift/cli/sft.py" if before else "swift sft"))
    text = path.read_text().split("\n")
    found = import_command(read_command([str(path)]))
    named = [finding for finding in found.findings.values() if finding.line]
    wrong = [
        (finding.key, finding.line)
        for finding in named
        if finding.key.rpartition("--")[2] not in text[finding.line - 1] and finding.key != "seed"
    ]
    assert wrong == [] and {"NPROC_PER_NODE", "NODE_RANK", "load_data_args"} <= {f.key for f in named}


def test_accelerates_variables_have_the_line_that_sets_them(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    text = "export ACCELERATE_USE_FSDP=true\nexport FSDP_VERSION=2\nACCELERATE_MIXED_PRECISION=bf16 \\\n"
    path.write_text(f"#!/bin/bash\n{text}swift sft --model base --dataset rows.jsonl\n")
    found = import_command(read_command([str(path)])).findings
    lines = {key: finding.line for key, finding in found.items() if key.isupper()}
    assert lines == {"ACCELERATE_USE_FSDP": 2, "FSDP_VERSION": 3, "ACCELERATE_MIXED_PRECISION": 4}
