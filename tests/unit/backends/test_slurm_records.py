"""Reading what Slurm prints. slurm_22_05/ and slurm_24_11/ were recorded on real clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalstop.backends.slurm.client import SlurmClient
from evalstop.backends.slurm.records import (
    END,
    FIELDS,
    SEPARATOR,
    JobRecord,
    expand_nodes,
    parse_detail,
    parse_jobs_json,
    parse_jobs_text,
    parse_nodes_text,
)
from evalstop.core.errors import ReadError

VERSIONS = ("slurm_22_05", "slurm_24_11")


def recorded(name, version=VERSIONS[0]):
    return (Path(__file__).parent / version / name).read_text()


def newer(job):
    """Return a 22.05 job in the shape of 23.11 and later, after that version's documentation."""

    def number(value):
        return {"set": value is not None, "infinite": False, "number": value or 0}

    counts = ("array_job_id", "array_task_id", "node_count", "tasks")
    states = job["job_state"]
    if states == "COMPLETING":
        states = "CANCELLED,COMPLETING"
    return {
        **job,
        **{name: number(job[name]) for name in counts},
        "job_state": states.split(","),
        "comment": {"administrator": job["admin_comment"], "job": job["comment"], "system": ""},
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_text_and_json_say_the_same(version):
    text = {job.id: job for job in parse_jobs_text(recorded("squeue.txt", version))}
    as_json = {job.id: job for job in parse_jobs_json(recorded("squeue.json", version))}
    assert text == as_json
    assert sorted(text) == ["1", "2", "3", "4_1", "4_2", "5"]


def test_the_newer_json_says_the_same():
    listing = json.loads(recorded("squeue.json"))
    listing["jobs"] = [newer(job) for job in listing["jobs"]]
    assert parse_jobs_json(json.dumps(listing)) == parse_jobs_json(recorded("squeue.json"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_job_is_read_in_full(version):
    job = {job.id: job for job in parse_jobs_text(recorded("squeue.txt", version))}["1"]
    assert (job.state, job.nodes, job.gpus, job.restarts) == ("RUNNING", ("n1", "n2"), 10, 0)
    assert (job.user, job.account, job.partition, job.name) == ("root", "", "gpu", "two nodes")
    assert job.comment.startswith("evalstop:metric=eval/acc,")


@pytest.mark.parametrize("version", VERSIONS)
def test_details_tell_devices_and_exit_codes(version):
    lines = recorded("scontrol.txt", version).splitlines()
    by_name = {
        line.split("JobName=")[1].split(" UserId=")[0]: parse_detail(line) for line in lines if line
    }
    two_nodes = by_name["two nodes"]
    assert sum(count for _, _, count in two_nodes.devices) == 10
    assert {node for node, _, _ in two_nodes.devices} == {"n1", "n2"}
    assert two_nodes.exit_code is None
    assert by_name["fails"].exit_code == 3
    assert by_name["fails"].devices == ()


@pytest.mark.parametrize(
    ("exit_code", "expected"), [("0:0", 0), ("3:0", 3), ("0:15", -15), ("0:9", -9)]
)
def test_signals_are_negative_exit_codes(exit_code, expected):
    line = f"JobId=1 JobName=a JobState=CANCELLED ExitCode={exit_code} DerivedExitCode=0:0"
    assert parse_detail(line).exit_code == expected


def test_an_admin_comment_is_read_whole():
    note = 'stop: {"a": 1, "b": "x=y"} | é'
    row = dict.fromkeys(FIELDS, "") | {"JobArrayID": "7", "admin_comment": note}
    (job,) = parse_jobs_text(SEPARATOR.join(row.values()) + END)
    assert job.admin_comment == note


@pytest.mark.parametrize(
    ("state", "reason", "held"),
    [
        ("PENDING", "job requeued in held state", True),
        ("PENDING", "JobHeldUser", True),
        ("REQUEUE_HOLD", "", True),
        ("PENDING", "Resources", False),
        ("RUNNING", "JobHeldAdmin", False),
    ],
)
def test_held_is_waiting_and_not_allowed_to_start(state, reason, held):
    assert JobRecord(id="1", state=state, reason=reason).held is held


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_are_read_with_their_gpus(version):
    nodes = {node.name: node for node in parse_nodes_text(recorded("sinfo.txt", version))}
    assert {name: node.gpus for name, node in nodes.items()} == {"n1": 8, "n2": 8}
    assert nodes["n2"].used == len(nodes["n2"].indices) == 6
    assert all(node.in_service for node in nodes.values())


@pytest.mark.parametrize(
    ("state", "in_service"),
    [
        ("idle", True),
        ("mixed", True),
        ("allocated", True),
        ("completing", True),
        ("planned", True),
        ("idle*", False),
        ("down", False),
        ("down*", False),
        ("drained", False),
        ("draining", False),
        ("maint", False),
        ("powered_down", False),
        ("unknown", False),
    ],
)
def test_only_nodes_in_service_count(state, in_service):
    line = SEPARATOR.join(["n1", "gpu:a100:4(S:0-1),shard:8", "gpu:a100:2(IDX:0,3)", state]) + END
    (node,) = parse_nodes_text(line)
    assert node.in_service is in_service
    assert (node.gpus, node.used, node.indices) == (4, 2, frozenset({0, 3}))


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"tres-per-node": "gres:gpu:h100:4"}, 4),
        ({"tres-per-node": "gres/gpu:h100:4"}, 4),
        ({"tres-per-node": "gres/gpu:h100=4", "NumNodes": "2"}, 8),
        ({"tres-per-node": "gpu:2", "NumNodes": "3"}, 6),
        ({"tres-per-node": "gpu"}, 1),
        ({"tres-per-node": "gres:gpu:a100:2,gres:gpu:h100:1"}, 3),
        ({"tres-per-job": "gres:gpu:10", "NumNodes": "2"}, 10),
        ({"tres-per-task": "gres:gpu:1", "NumTasks": "5"}, 5),
        ({"tres-per-node": "gres/gpu:h100:2,gres/gpu:a100:3"}, 5),
        ({"tres-alloc": "cpu=8,gres/gpu=4,gres/gpu:h100=4,node=1"}, 4),
        ({"tres-alloc": "cpu=8,gres/gpu=4,gres/gpu:h100=3,gres/gpu:a100=1,node=1"}, 4),
        ({"tres-alloc": "cpu=8,mem=8G,node=1", "tres-per-node": "gres:gpu:2"}, 2),
        ({"tres-per-node": "gres:shard:2"}, 0),
        ({"tres-per-node": "N/A", "tres-per-job": "(null)"}, 0),
        ({}, 0),
    ],
)
def test_gpus_are_counted_in_every_spelling(asked, gpus):
    row = dict.fromkeys(FIELDS, "") | {"JobArrayID": "1", "NumNodes": "1", "NumTasks": "1"} | asked
    (job,) = parse_jobs_text(SEPARATOR.join(row.values()) + END)
    assert job.gpus == gpus


@pytest.mark.parametrize(
    ("names", "nodes"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10,12],login", ("n08", "n09", "n10", "n12", "login")),
        ("a[1-2]-ib,b3", ("a1-ib", "a2-ib", "b3")),
    ],
)
def test_node_lists_are_expanded(names, nodes):
    assert expand_nodes(names) == nodes


def test_a_comment_may_hold_anything_but_our_separators():
    row = dict.fromkeys(FIELDS, "") | {"JobArrayID": "7", "Comment": "a|b,\nline two\t'\""}
    (job,) = parse_jobs_text(SEPARATOR.join(row.values()) + END + "\n")
    assert job.comment == "a|b,\nline two\t'\""


@given(st.text())
def test_no_text_is_too_odd(text):
    parse_jobs_text(text)
    parse_nodes_text(text)
    parse_detail(text)
    expand_nodes(text)


odd_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(sorted(newer(json.loads(recorded("squeue.json"))["jobs"][0]))), odd_json
    )
)
def test_one_odd_job_does_not_hide_the_others(odd):
    good = json.loads(recorded("squeue.json"))["jobs"][0]
    found = parse_jobs_json(json.dumps({"jobs": [{"job_id": 9, **odd}, good, "no job"]}))
    assert found[-1].id == "1"


@pytest.mark.parametrize("text", ["", "squeue: error", "[]", '{"errors": []}', "null"])
def test_what_is_no_listing_is_refused(text):
    with pytest.raises(ReadError, match="list of jobs"):
        parse_jobs_json(text)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_recorded_details_are_told_apart(tmp_path, version):
    fake = tmp_path / "scontrol"
    fake.write_text(f"#!/bin/sh\ncat {Path(__file__).parent / version}/scontrol.txt\n")
    fake.chmod(0o755)
    client = SlurmClient(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert sorted(client.details()) == ["1", "2", "3", "4_1", "4_2", "5"]
