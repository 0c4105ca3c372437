"""Ways out of a process, and ways for other people's code into it, each in a table or decorated: a new one
has to be looked at.
"""

from __future__ import annotations

import ast

from sources import dotted, sources

# Modules that write text, and where what they write gets redacted, or why there is nothing in it
WRITERS = {
    "paceline/runlog/appended.py": (
        "what the event and text logs have passed through the redactor they are given"
    ),
    "paceline/runlog/result.py": "the redactor it is given",
    "paceline/training/spare.py": "the pid of a fork, to its parent",
    "paceline/launch/run_secret.py": "the secret of the store, for its owner alone",
    "paceline/doctor/nodes/run_folder.py": "zeros, to time the disk",
    "paceline/runtime/process_group/link_probe.py": "findings, in a temporary folder",
    "paceline/launch/claim_run_dir.py": "the redactor it is given; no secret in the config",
    "paceline/training/exact_match.py": "redacted",
    "paceline/evaluation/scores/picture_answers.py": "pictures of the questions, small, in the run directory",
    "paceline/training/profiling/recorder.py": "names of operations and layers, and numbers",
    "paceline/runtime/failures/pod_probe.py": "zeros, to see whether the disk takes them",
    "paceline/launch/launch_record.py": "a job, a host, a process and folders",
    "paceline/cli/jobs.py": "a site's keys, as a person has typed them",
    "paceline/schedulers/write_files.py": "a job names files of secrets, and launch.env refuses values",
    "paceline/cli/errors.py": "redacted",
    "paceline/launch/supervision/exit_record.py": "the redactor it is given",
    "paceline/launch/preflight/once_per_node.py": "redacted",
    "paceline/launch/program.py": "is the redaction",
    "paceline/runtime/failures/heartbeat.py": "numbers",
    "paceline/runtime/failures/stragglers.py": "names and sizes of collectives",
    "paceline/plan/child_answer.py": "devices and versions, names and shapes, as redacted by the child",
    "paceline/plan/cost/measured_runs.py": "numbers, and a model's name of the config",
    "paceline/launch/calibrate_site.py": "the same, and the name of the card",
    "paceline/training/rollout/weight_folder.py": "a model's config.json",
    "paceline/data/file_digests.py": "digests, and a tokenizer's special tokens",
    "paceline/data/dataset_store.py": "sizes and digests",
    "paceline/data/images/table.py": "the bytes of pictures, and their places",
    "paceline/simulate/__main__.py": "numbers, in a temporary folder",
    "paceline/cli/process.py": "a config, in a temporary folder",
    "paceline/data/preview.py": "totals, in a temporary folder",
    "paceline/config/import_export/commands/accelerate_options.py": "a launcher's options",
    "paceline/config/import_export/commands/python_script.py": "trees of a script that are compared, nothing",
    "paceline/config/import_export/commands/python_values.py": "trees of a script that are compared, nothing",
    "paceline/data/write_rows.py": "the user's own rows, in a folder that the user names",
    "paceline/training/hand_over.py": "the form of rows, in a temporary folder",
    "paceline/config/import_export/write_yaml.py": "a composed YAML, without secrets",
    "paceline/config/import_export/targets/export_config.py": "a composed YAML, without secrets",
    "paceline/config/import_export/import_backend_files.py": "the name of a file, in a temporary folder",
    "paceline/cli/compat.py": "a composed YAML: values with a secret's shape are masked",
    "paceline/cli/new_configs.py": "a user's answers, in a file of their own",
    "paceline/cli/configs.py": "a composed YAML: values with a secret's shape are masked",
    "paceline/data/prepare/epoch_lengths.py": "numbers, in a temporary folder",
    "paceline/api/proving.py": "composed YAMLs and commands: secrets are left out or masked; rows of a proof",
    "paceline/verify/peer_program.py": "losses, in a temporary folder",
    "paceline/api/verifying.py": "a config and its verdict",
    "paceline/api/arguments.py": "the caller's config or rows, in a private folder",
    "paceline/demo/scaling.py": "the demo's config",
    "paceline/demo/files.py": "the demo's",
    "paceline/demo/report.py": "the demo's",
    "paceline/demo/main.py": "the demo's",
    "paceline/demo/questions.py": "the demo's",
    "paceline/checkpoint/format/durable_files.py": "numbers and the config",
    "paceline/checkpoint/convert/pickle_reader/sandboxed_reader.py": "values of a pickle, on a pipe",
    "paceline/checkpoint/convert/pickle_reader/client.py": "a pickle, on a pipe",
    "paceline/algorithms/rewards/sandbox/client.py": "a program, in memory",
    "paceline/algorithms/rewards/sandbox/server.py": "a verdict, on a pipe",
    "paceline/algorithms/rewards/sandbox/isolation.py": "maps of users",
    "paceline/algorithms/rewards/code_reward.py": "a reason, in a temporary folder",
    "paceline/launch/child.py": "a config that was refused if it held a secret, in a temporary folder",
    "paceline/training/preflight/trial.py": "findings, in a temporary folder",
    "paceline/checkpoint/preflight.py": "findings, in a temporary folder",
    "paceline/config/render/reference.py": "documentation",
    "paceline/config/backend_files/docs_page.py": "documentation",
    "paceline/training/reporting/console.py": "the redactor it is given",
    "paceline/api/evaluating.py": "what is to be evaluated, in a temporary folder",
    "paceline/cli/evaluation.py": "results, in the file that the user names",
    "paceline/evaluation/answers_file.py": "answers, in the file that the user names",
    "paceline/evaluation/scores/judge.py": "prompts of the judge, in a temporary folder",
    "paceline/evaluation/main.py": "results, in a temporary folder",
    "paceline/evaluation/scores/metrics.py": "answers, in a temporary folder",
    "paceline/evaluation/open_run.py": "the path of a checkpoint, in a temporary folder",
    "paceline/evaluation/processes/work_folder.py": "settings and results, beside what the user names",
    "paceline/evaluation/pictures.py": "pictures of the rows, in that folder",
    "paceline/evaluation/picture_chat.py": "pictures of the command line, in a temporary folder",
    "paceline/watch/page/columns.py": "numbers",
    "paceline/watch/page/index.py": "what a run's events hold, redacted as they were written",
    "paceline/demo/pictures.py": "the demo's own rows and tokenizer",
    "paceline/demo/vision.py": "the demo's config",
    "paceline/watch/page/report.py": "what a run folder holds, redacted as it was written",
}
_WRITES = ("write_text", "write_bytes", "write", "writelines", "dump")
# Calls of that name that write no text: events and blocks of tensors
EVENTS = {
    ("paceline/launch/supervision/supervisor.py", "self._record.write"),
    ("paceline/runlog/log.py", "self.events.write"),
    ("paceline/training/reporting/observers.py", "self.log.write"),
    ("paceline/training/run/peer_failures.py", "self._run.observers.log.write"),
    ("paceline/data/prepare/build.py", "writer.write"),
    ("paceline/data/prepare/build.py", "pictures.write"),
    ("paceline/evaluation/answers_file.py", "work.write"),
    ("paceline/evaluation/server/app.py", "stream.write"),
    ("paceline/evaluation/scores/model_scores.py", "work.write"),
    ("paceline/training/exact_match.py", "log.write"),
    ("paceline/training/rollout/rollout_windows.py", "self.generator.write"),
    ("paceline/training/rollout/generate.py", "generator.write"),
    ("paceline/training/rollout/generate.py", "self.write"),
}


def test_every_module_that_writes_text_is_known() -> None:
    found = {
        source.path
        for source in sources()
        for name, call in source.calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in _WRITES
        and (source.path, name) not in EVENTS
    }
    assert found - set(WRITERS) == set(), (
        "does a secret go out here? pass it through runlog/redact.py and say so above"
    )
    assert set(WRITERS) - found == set()


def test_every_program_of_the_package_redacts_what_it_prints() -> None:
    """Whatever can be started (``python -m``) has a ``main`` whose streams are redacted."""
    documentation = {
        "paceline/config/render/reference.py",
        "paceline/config/backend_files/docs_page.py",
        "paceline/plan/model/families_page.py",
    }
    # The one calls the console script's own ``main``; the other prints nothing, where Paceline is not
    another = {"paceline/__main__.py", "paceline/verify/peer_program.py"}
    bare = []
    for source in sources():
        started = any(
            isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in source.tree.body
        )
        mains = [
            node for node in source.tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"
        ]
        decorators = {ast.unparse(d) for main in mains[:1] for d in main.decorator_list}
        if (
            started
            and source.path not in documentation | another
            and not decorators & {"redacted", "program"}
        ):
            bare.append(source.path)
    assert not bare


def test_every_loader_says_whether_code_may_run() -> None:
    """Left open, Transformers asks the person at the terminal, and takes yes for an answer."""
    open_ended = [
        source.at(call)
        for source in sources()
        for name, call in source.calls()
        if name.rpartition(".")[2] in ("from_pretrained", "from_config")
        and name.lower().startswith("auto")
        and not {k.arg for k in call.keywords} & {"trust_remote_code", None}
    ]
    assert not open_ended


# Who writes a terminal's control sequences, and where what others wrote is escaped in it
TERMINALS = {
    "paceline/training/run/startup.py": "data.prepare.prepare.main.Bar",
    "paceline/cli/training.py": "printable() on the name of a config",
    "paceline/data/prepare/main.py": "rates and counts",
    "paceline/data/preview.py": "rows and totals, through printable",
    "paceline/training/reporting/console.py": "printable() on every line",
    "paceline/demo/main.py": "report.plain()",
    "paceline/demo/scaling.py": "numbers",
}


def test_nothing_goes_round_the_escaping_of_what_is_printed() -> None:
    """Only a known module writes control sequences; nobody writes to the descriptors or the streams
    beneath.
    """
    asks = {
        source.path
        for source in sources()
        for name, _ in source.calls()
        if name in ("terminal", "Console", "RichConsole")
    }
    # that one makes the module's own Console
    assert asks - {"paceline/training/reporting/observers.py"} == set(TERMINALS)
    beneath = [
        source.at(node)
        for source in sources()
        for node in source.nodes()
        if isinstance(node, ast.Attribute)
        and dotted(node) in ("sys.__stdout__", "sys.__stderr__", "sys.stdout.buffer", "sys.stderr.buffer")
        and not source.path.startswith("paceline/algorithms/rewards/sandbox/")  # the stranger's own program
        and source.path
        != "paceline/checkpoint/convert/pickle_reader/sandboxed_reader.py"  # a pipe to its parent
        or isinstance(node, ast.Call)
        and dotted(node.func) == "os.write"
        and ast.unparse(node.args[0]) in ("1", "2")
    ]
    assert not beneath
