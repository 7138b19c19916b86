"""What a comment on a Slurm job says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.backends.slurm.jobs import job_launch, job_spec, resolve
from evalstop.backends.slurm.optin import KEYS, parse_comment, write_comment
from evalstop.backends.slurm.records import JobRecord
from evalstop.backends.slurm.submission import batch_script, sbatch_options
from evalstop.backends.slurm.tenants import Tenants
from evalstop.core.errors import InputError
from evalstop.core.job import JobSpec
from evalstop.ports import Launch


@pytest.mark.parametrize("comment", ["", "(null)", "mine", "eval-stop:metric=a", "EVALSTOP"])
def test_other_comments_say_nothing(comment):
    assert parse_comment(comment) is None


@pytest.mark.parametrize(
    ("comment", "values"),
    [
        ("evalstop:metric=acc,direction=max", {"metric": "acc", "direction": "max"}),
        ("evalstop: metric = acc ; direction = min ;", {"metric": "acc", "direction": "min"}),
        (
            "evalstop:metric=eval/a,rule=scan:alpha=0.01,min_evals=4,direction=max",
            {"metric": "eval/a", "rule": "scan:alpha=0.01,min_evals=4", "direction": "max"},
        ),
        (
            "project=x evalstop:metric=acc\ndirection=max",
            {"metric": "acc", "direction": "max"},
        ),
        (
            "evalstop:metric=val-core/gsm8k/acc/mean@1;direction=max;tenant=amber",
            {"metric": "val-core/gsm8k/acc/mean@1", "direction": "max", "tenant": "amber"},
        ),
    ],
)
def test_pairs_are_read_as_people_write_them(comment, values):
    found = parse_comment(comment)
    assert found.values == values
    assert not found.problem


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        ("evalstop:", "names no metric"),
        ("evalstop:direction=max", "names no metric"),
        ("evalstop:metric=acc", "no direction"),
        ("evalstop:metric=acc,direction=up", "direction=up is neither"),
        ("evalstop:metrics=acc", "unknown key 'metrics'; known keys: metric, direction"),
        ("evalstop:metric=a,direction=max,grace_s=soon", "grace_s=soon is not a number"),
        ("evalstop:metric=a,direction=max,estimated_s=-5", "estimated_s=-5 is not a number"),
    ],
)
def test_a_job_that_cannot_be_guarded_says_why_and_harms_nobody(comment, problem):
    found = parse_comment(comment)
    assert problem in found.problem
    record = JobRecord(id="1", state="RUNNING", gpus=1, comment=comment)
    labels = job_spec("1", record, found, Tenants()).labels
    assert problem in labels["refused"]
    assert labels["evalstop"] == "off"
    assert job_launch("1", record, found).grace_s == 30.0


@pytest.mark.parametrize(("said", "off"), [("true", True), ("Yes", True), ("false", False)])
def test_a_job_may_opt_out_of_being_stopped(said, off):
    found = parse_comment(f"evalstop:metric=a,direction=max,optout={said}")
    labels = job_spec("1", JobRecord(id="1", state="RUNNING", gpus=1), found, Tenants()).labels
    assert (labels.get("evalstop") == "off") is off


@given(st.text())
def test_no_comment_is_too_odd(text):
    comment = f"evalstop:{text}"
    found = parse_comment(comment)
    record = JobRecord(id="1", state="RUNNING", gpus=1, comment=comment)
    assert job_spec("1", record, found, Tenants()).id == "1"
    job_launch("1", record, found)


written = st.text(
    st.characters(blacklist_categories=["C", "Z"], blacklist_characters=";"), min_size=1
)


@given(st.dictionaries(st.sampled_from(sorted(set(KEYS) - {"estimated_s", "grace_s"})), written))
def test_what_is_written_is_read_back(values):
    values = {"metric": "acc", "direction": "max", **values}
    assert parse_comment(write_comment(values)).values == values


@pytest.mark.parametrize("values", [{"nope": "1"}, {"metric": "a;b"}, {"metric": "a\nb"}])
def test_what_could_not_be_read_back_is_not_written(values):
    with pytest.raises(InputError):
        write_comment(values)


def test_the_tenant_is_the_account_where_nobody_says_otherwise():
    optin = parse_comment("evalstop:metric=a,direction=max")
    record = JobRecord(id="1", state="RUNNING", gpus=1, user="eve", account="nlp")
    assert job_spec("1", record, optin, Tenants()).tenant == "nlp"
    record = JobRecord(id="1", state="RUNNING", gpus=1, user="eve")
    assert job_spec("1", record, optin, Tenants()).tenant == "eve"


ALLOWED = {"nlp": ("nlp", "nlp-evals"), "user:ann": ("speech",)}


@pytest.mark.parametrize(
    ("user", "account", "claimed", "tenant"),
    [
        ("eve", "nlp", "", "nlp"),
        ("eve", "nlp", "nlp-evals", "nlp-evals"),
        ("eve", "vision", "vision", "vision"),
        ("eve", "", "eve", "eve"),
        ("ann", "vision", "", "speech"),
        ("ann", "nlp", "nlp-evals", "nlp-evals"),
        ("service", "ops", "anybody", "anybody"),  # handed in by evalstop, which knew whose it is
    ],
)
def test_a_tenant_that_is_allowed_is_believed(user, account, claimed, tenant):
    record = JobRecord(id="1", state="RUNNING", user=user, account=account)
    assert Tenants(allowed=ALLOWED, own_user="service").of(record, claimed) == (tenant, "")


@pytest.mark.parametrize(
    ("user", "account", "claimed", "tenant"),
    [
        ("eve", "nlp", "speech", "nlp"),
        ("eve", "vision", "nlp", "vision"),
        ("ann", "vision", "vision", "speech"),
        ("eve", "", "ann", "eve"),
        ("eve", "user:ann", "speech", "user:ann"),
    ],
)
def test_a_job_cannot_claim_a_tenant_that_is_not_its_owners(user, account, claimed, tenant):
    record = JobRecord(id="1", state="RUNNING", user=user, account=account)
    optin = parse_comment(f"evalstop:metric=a,direction=max,tenant={claimed}")
    job = job_spec("1", record, optin, Tenants(allowed=ALLOWED, own_user="service"))
    assert job.tenant == tenant
    assert f"tenant={claimed} is not allowed" in job.labels["tenant_refused"]


def test_paths_are_under_the_jobs_folder_and_know_its_number():
    optin = parse_comment("evalstop:metric=a,direction=max,checkpoints=runs/%j,evals=/x/%j.jsonl")
    record = JobRecord(id="5_1", state="RUNNING", gpus=1, work_dir="/home/eve")
    assert job_launch("5_1", record, optin).checkpoints == "/home/eve/runs/5_1"
    assert job_spec("5_1", record, optin, Tenants()).labels["evals"] == "/x/5_1.jsonl"


@pytest.mark.parametrize(
    ("place", "full"),
    [
        ("", ""),
        ("evals.jsonl", "/home/eve/evals.jsonl"),
        ("tensorboard:runs/%j", "tensorboard:/home/eve/runs/7"),
        ("trainer:/x", "trainer:/x"),
        ("mlflow:http://t:5000?run=a", "mlflow:http://t:5000?run=a"),
        ("wandb:team/p/%j", "wandb:team/p/7"),
        ("s3://bucket/runs/%j", "s3://bucket/runs/7"),
    ],
)
def test_scores_may_be_in_any_kind_of_place(place, full):
    assert resolve(place, "7", JobRecord(id="7", state="RUNNING", work_dir="/home/eve")) == full


@pytest.mark.parametrize("name", ["uid", "gid", "wrap", "comment", "chdir", "export", "array", ""])
def test_options_that_would_give_power_are_not_passed_on(name):
    launch = Launch(command=("true",), options={name: "x"})
    with pytest.raises(InputError, match="is not passed on"):
        sbatch_options(JobSpec(id="a"), launch)


def test_a_script_quotes_what_it_is_given():
    launch = Launch(command=("echo", "a b", "$(id)"), environment={"A": "x'; id #"})
    script = batch_script(launch)
    assert "exec echo 'a b' '$(id)'\n" in script
    assert "export A='x'\"'\"'; id #'\n" in script


@pytest.mark.parametrize(
    "launch", [Launch(command=()), Launch(command=("true",), environment={"a b": "1"})]
)
def test_what_cannot_be_a_script_is_refused(launch):
    with pytest.raises(InputError):
        batch_script(launch)
