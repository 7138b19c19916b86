"""Traces of arrivals: their forms, and every way they can be wrong."""

import gzip

import numpy as np
import pytest

from evalstop.core.errors import ReadError
from evalstop.traces.arrivals import read_arrivals

PLAIN = "job_id,num_gpu,submit_time,duration\nb,2,100,60\na,1,0,30\n"


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_the_plain_form_is_sorted_and_its_estimates_are_the_durations(tmp_path):
    form, arrived, left_out = read_arrivals(written(tmp_path, PLAIN))
    assert form == "plain"
    assert arrived.ids == ("a", "b")
    assert arrived.submit_s.tolist() == [0, 100]
    assert arrived.gpus.tolist() == [1, 2]
    assert arrived.duration_s.tolist() == arrived.estimated_s.tolist() == [30, 60]
    assert arrived.tenant is None
    assert arrived.job_type is None
    assert left_out == {}


def test_optional_columns_are_read(tmp_path):
    text = (
        "job_id,num_gpu,submit_time,duration,tenant,job_type,estimated_duration\n"
        "1,1,0,10,red,grpo,20\n2,1,1,10,blue,ppo,\n3,1,2,10,red,sft,5\n"
    )
    arrived = read_arrivals(written(tmp_path, text)).arrived
    assert [arrived.tenants[i] for i in arrived.tenant] == ["red", "blue", "red"]
    assert [arrived.job_types[i] for i in arrived.job_type] == ["rlhf", "rlhf", "lora"]
    assert arrived.estimated_s.tolist() == [20, 10, 5]


def test_the_philly_form_counts_seconds_from_its_first_job(tmp_path):
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:01:55,66.4,1,66.0,11cb48\n"
        "2017-10-09 07:00:55,0.0,4,0.0,6214e9\n"
    )
    form, arrived, _ = read_arrivals(written(tmp_path, text))
    assert form == "philly"
    assert arrived.submit_s.tolist() == [0, 60]
    assert arrived.duration_s.tolist() == [1, 66]
    assert [arrived.tenants[i] for i in arrived.tenant] == ["6214e9", "11cb48"]
    assert arrived.ids is None


def test_the_acme_form_leaves_out_jobs_without_gpus_or_time(tmp_path):
    text = (
        "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,"
        "queue,gpu_time\n"
        "d1,u1,1,8.0,0,SFT,COMPLETED,2023-03-01 00:00:05+08:00,x,x,100,5,800\n"
        "d2,u2,0,0.0,4,Other,COMPLETED,2023-03-01 00:00:06+08:00,x,x,100,5,0\n"
        "d3,u2,1,1.0,4,Debug,FAILED,2023-03-01 00:00:07+08:00,x,x,0,5,0\n"
        "d4,u2,1,1.0,4,Debug,FAILED,2023-03-01 00:01:05+08:00,x,x,7,5,7\n"
    )
    form, arrived, left_out = read_arrivals(written(tmp_path, text))
    assert form == "acme"
    assert arrived.ids == ("d1", "d4")
    assert arrived.submit_s.tolist() == [0, 60]
    assert left_out == {"no GPU": 1, "no duration": 1}
    assert arrived.job_type is None


def test_the_first_jobs_by_submission_can_be_taken(tmp_path):
    assert read_arrivals(written(tmp_path, PLAIN), jobs=1).arrived.ids == ("a",)


def test_jobs_of_one_moment_keep_the_order_of_the_file(tmp_path):
    rows = "".join(f"j{i},1,0,10\n" for i in np.random.default_rng(0).permutation(50))
    arrived = read_arrivals(written(tmp_path, PLAIN.split("\n", 1)[0] + "\n" + rows)).arrived
    assert list(arrived.ids) == [row.split(",")[0] for row in rows.split()]


BAD = {
    "an empty file": ("", ["empty"]),
    "a header alone": ("job_id,num_gpu,submit_time,duration\n", ["no rows"]),
    "no job that ran": ("job_id,num_gpu,submit_time,duration\na,0,1,9\n", ["no job with GPUs"]),
    "a missing column": ("job_id,num_gpu,duration\n1,1,1\n", ["submit_time", "the columns are"]),
    "no job_id": ("num_gpu,submit_time,duration\n1,1,1\n", ["job_id", "missing"]),
    "a text number": (PLAIN + "c,1,5,long\n", ["trace.csv:4", "duration", "'long'"]),
    "a negative duration": (PLAIN + "c,1,5,-3\n", ["trace.csv:4", "seconds >= 0", "-3"]),
    "half a GPU": (PLAIN + "c,0.5,5,3\n", ["trace.csv:4", "num_gpu", "0.5"]),
    "no submission": (PLAIN + "c,1,,3\n", ["trace.csv:4", "submit_time", "nothing"]),
    "an infinite submission": (PLAIN + "c,1,inf,3\n", ["trace.csv:4", "finite"]),
    "a job twice": (PLAIN + "a,1,5,3\n", ["trace.csv:4", "'a'", "second time"]),
    "a job without name": (PLAIN + ",1,5,3\n", ["trace.csv:4", "empty"]),
    "a bad estimate": (
        "job_id,num_gpu,submit_time,duration,estimated_duration\n1,1,0,5,-1\n",
        ["trace.csv:2", "estimated_duration"],
    ),
    "a date that is none": (
        "timestamp,duration,num_gpus\n2017-10-09 07:01:55,1,1\nlater-ish: x,1,1\n",
        ["trace.csv:3", "timestamp", "2023-03-01 00:00:05", "'later-ish: x'"],
    ),
    "more GPUs than there are": (PLAIN + "c,1e300,5,3\n", ["trace.csv:4", "num_gpu", "1e+300"]),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_told_with_its_line(tmp_path, text, words):
    with pytest.raises(ReadError) as caught:
        read_arrivals(written(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("head", ["job_id,tenant,num_gpu,submit_time,duration\n", "\n"])
def test_times_of_day_are_seen_behind_quotes_and_blank_lines(tmp_path, head):
    columns = "" if head.strip() else "job_id,tenant,num_gpu,submit_time,duration\n"
    rows = '1,"a, b",1,2023-03-01 00:00:05,5\n2,c,1,2023-03-01 00:01:05,5\n'
    found = read_arrivals(written(tmp_path, head + columns + rows))
    assert found.arrived.submit_s.tolist() == [0.0, 60.0]
    assert found.arrived.tenants == ("a, b", "c")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(PLAIN.encode()), ["packed by gzip", "gunzip"]),
        (PLAIN.encode("utf-16"), ["UTF-16", "iconv"]),
        (PLAIN.replace("a", "\xe9").encode("latin-1"), ["UTF-8", "0xe9"]),
    ],
    ids=["gzip", "utf-16", "latin-1"],
)
def test_what_is_no_text_is_told(tmp_path, data, words):
    path = tmp_path / "trace.csv"
    path.write_bytes(data)
    with pytest.raises(ReadError) as caught:
        read_arrivals(path)
    for word in words:
        assert word in str(caught.value)


def test_a_folder_or_a_link_in_place_of_the_file_is_told(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for path, word in ((tmp_path, "directory"), (tmp_path / "loop", "symbolic links")):
        with pytest.raises(ReadError, match=word):
            read_arrivals(path)


def test_no_file_is_told(tmp_path):
    with pytest.raises(ReadError, match="no such file"):
        read_arrivals(tmp_path / "none.csv")
