"""Names of jobs: a scheduler would change an object of the same name, not add another."""

from __future__ import annotations

from pathlib import Path

from paceline.config.schema import Config
from paceline.schedulers.check_job import JobRequest, job_of
from paceline.schedulers.job import dns_name


def test_two_runs_of_one_file_have_two_names_and_a_run_keeps_its_own(tmp_path: Path) -> None:
    def name(output_dir: str | None) -> str:
        training = {"experiment_name": "mine", **({"output_dir": output_dir} if output_dir else {})}
        sections = {"model": {"name_or_path": "/m"}, "data": {"train": "rows.json"}, "training": training}
        request = JobRequest(tmp_path / "mine.yaml", (), "kubernetes", ("paceline",), tmp_path)
        return job_of(Config.from_json(sections), request, 0, None).name

    names = [name(folder) for folder in (None, "/runs/a", "/runs/b", "/elsewhere/a")]
    assert names[0] == "mine" and len(set(names)) == 4
    assert names[1] == name("/runs/a"), "launched anew, it is the same job"
    assert all(dns_name(one) == one and one.startswith("mine") for one in names)
