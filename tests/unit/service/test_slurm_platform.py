"""The platform over Slurm's commands, faked: tokens, tenants, rules of choice, jobs come back."""

from __future__ import annotations

import json
import os
import re

import pytest

from evalstop.backends.slurm.records import END, FIELDS, SEPARATOR
from evalstop.config.settings import BackendName, ClusterSettings, PolicySettings, Settings
from evalstop.policies.modes import Mode
from evalstop.service.assemble import start
from evalstop.service.requests import EvalIn, Submission
from evalstop.service.tokens import Scope
from evalstop.testing.backend import eventually

COMMENT = "evalstop:metric=acc,direction=max,job_type=rlhf"


class Site:
    """Slurm's commands as scripts: the queue is a file, sbatch keeps what it was given."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.queue = folder / "queue"
        self.queue.touch()
        device = f"n1{SEPARATOR}gpu:8{SEPARATOR}gpu:0(IDX:N/A){SEPARATOR}idle{END}"
        (folder / "nodes").write_text(device + "\n")
        scripts = {
            "squeue": f"cat {self.queue}",
            "sinfo": f"cat {folder}/nodes",
            "scontrol": 'case "$*" in *show*) echo "JobId=$5 JobState=RUNNING";; esac',
            "scancel": "exit 0",
            "sbatch": f'echo "$@" > {folder}/argv; cat > {folder}/script; '
            f"cat {folder}/submitted >> {self.queue}; echo 77",
        }
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        self.running = None

    def row(self, job, state="RUNNING", comment=COMMENT, **values):
        fields = dict.fromkeys(FIELDS, "") | {
            "JobArrayID": job,
            "State": state,
            "UserName": "eve",
            "NumNodes": "1",
            "NumTasks": "1",
            "RestartCnt": "0",
            "NodeList": "n1",
            "tres-per-node": "gres:gpu:1",
            "Comment": comment,
        }
        return SEPARATOR.join((fields | values).values()) + END + "\n"

    def lists(self, rows):
        """Change the queue in one step: somebody may be reading it."""
        aside = self.folder / "queue-aside"
        aside.write_text(rows)
        aside.replace(self.queue)

    def up(self, *, tenants=None, **policy):
        settings = Settings(
            cluster=ClusterSettings(
                backend=BackendName.SLURM, poll_s=0.02, undo_window_s=0, tenants=tenants or {}
            ),
            policy=PolicySettings(mode=Mode.ENFORCE, warn_s=0, backed_s=0, **policy),
        )
        self.running = start(settings, self.folder / "state", url="http://evalstop.site:8787")
        return self.running.platform


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = Site(tmp_path, monkeypatch)
    yield site
    if site.running is not None:
        site.running.close()


def _known(platform, job):
    eventually(lambda: job in platform.controller.ledger.jobs, 120.0)
    return platform.record(job)


def test_a_submitted_job_gets_a_token_of_its_own_and_no_argument_shows_it(site):
    (site.folder / "submitted").write_text(site.row("77"))
    platform = site.up()
    job = platform.submit(
        Submission(id="a", direction="max", metric="acc", command=["python", "train.py"])
    )
    script = (site.folder / "script").read_text()
    token = re.search(r"EVALSTOP_TOKEN=(\S+)", script).group(1)
    assert "EVALSTOP_URL=http://evalstop.site:8787" in script
    assert token not in (site.folder / "argv").read_text()
    principal = site.running.tokens.find(token)
    assert (job, principal.scope, principal.job) == ("77", Scope.JOB, "77")
    kept = [path for path in (site.folder / "state").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if token.encode() in path.read_bytes()]


def test_a_token_opens_nothing_until_the_job_has_a_name(site):
    platform = site.up()
    token = site.running.tokens.draw()
    assert site.running.tokens.find(token) is None
    assert platform.jobs() == []


def test_a_comment_claims_no_tenant_that_the_settings_do_not_allow(site):
    site.lists(
        site.row("1", comment=COMMENT + ",tenant=rich")
        + site.row("2", comment=COMMENT + ",tenant=speech", Account="lab")
        + site.row("3", Account="lab")
    )
    platform = site.up(tenants={"lab": ("lab-a", "speech")})
    assert _known(platform, "1").spec.tenant == "eve"
    assert "tenant=rich is not allowed" in _known(platform, "1").spec.labels["tenant_refused"]
    assert _known(platform, "2").spec.tenant == "speech"
    assert _known(platform, "3").spec.tenant == "lab-a"


def test_a_job_may_choose_among_the_rules_that_are_allowed(site):
    site.lists(
        site.row("1", comment=COMMENT + ",rule=consecutive:k=1")
        + site.row("2", comment=COMMENT + ",rule=none")
    )
    platform = site.up(rule="consecutive:k=3", job_may_choose=("consecutive:k=1",))
    for job in ("1", "2"):
        _known(platform, job)
        evals = [EvalIn(step=step, score=-0.1 * step) for step in (1, 2)]
        platform.report(job, evals).result(timeout=120)
    records = {job: json.loads(platform.explain(job)) for job in ("1", "2")}
    assert records["1"]["decisions"][0]["rule"] == "consecutive:k=1"
    assert records["1"]["rule_asked"] == {"rule": "consecutive:k=1", "why_not": ""}
    assert records["2"]["decisions"] == []
    assert (
        "does not allow 'none' (allowed: consecutive:k=1)"
        in (records["2"]["rule_asked"]["why_not"])
    )
    assert platform.job("2")["verdict"]["rule"] == "consecutive:k=3"


def test_a_job_that_its_owner_requeues_after_its_end_is_guarded_again(site):
    site.lists(site.row("5"))
    platform = site.up(rule="consecutive:k=2")
    _known(platform, "5")
    site.lists(site.row("5", state="COMPLETED"))
    platform.wait_for("5", {"failed", "completed"}, within_s=120)
    site.lists(site.row("5", state="PENDING", RestartCnt="1"))
    platform.wait_for("5", {"waiting"}, within_s=120)
    site.lists(site.row("5", RestartCnt="1"))
    platform.wait_for("5", {"running"}, within_s=120)
    evals = [EvalIn(step=step, score=-0.1 * step) for step in (1, 2, 3)]
    platform.report("5", evals).result(timeout=120)
    record = json.loads(platform.explain("5"))
    assert record["decisions"][-1]["kind"] == "stop"
    assert [order["note"] for order in record["operators"]] == [
        "requeued by its owner after it had ended"
    ]


def test_a_job_that_has_ended_is_not_revived_by_a_restart(site):
    site.lists(site.row("5"))
    platform = site.up(rule="consecutive:k=2")
    _known(platform, "5")
    site.lists(site.row("5", state="COMPLETED"))
    ended = platform.wait_for("5", {"failed", "completed"}, within_s=120)["outcome"]
    site.running.close()
    # Slurm remembers it for minutes, and its GPU has gone to another job: nobody who did not see
    # it before can tell that it was released.
    site.lists(site.row("5", state="COMPLETED") + site.row("6"))
    (site.folder / "nodes").write_text(
        f"n1{SEPARATOR}gpu:8{SEPARATOR}gpu:1(IDX:0){SEPARATOR}mixed{END}\n"
    )
    platform = site.up(rule="consecutive:k=2")
    _known(platform, "6")
    for _ in range(3):
        platform.parts.carry_out.look().result(timeout=120)
    assert platform.job("5")["outcome"] == ended
    assert json.loads(platform.explain("5"))["operators"] == []


def test_a_stopped_job_that_is_requeued_is_not_revived(site):
    site.lists(site.row("5"))
    platform = site.up(rule="consecutive:k=2")
    _known(platform, "5")
    evals = [EvalIn(step=step, score=-0.1 * step) for step in (1, 2, 3)]
    platform.report("5", evals).result(timeout=120)
    site.lists(site.row("5", state="CANCELLED"))
    platform.wait_for("5", {"stopped_by_policy"}, within_s=120)
    platform.parts.carry_out.look().result(timeout=120)
    looked = platform.controller.sequence
    site.lists(site.row("5", RestartCnt="1"))
    for _ in range(5):
        platform.parts.carry_out.look().result(timeout=120)
    assert platform.job("5")["outcome"] == "stopped_by_policy"
    assert platform.controller.sequence == looked
