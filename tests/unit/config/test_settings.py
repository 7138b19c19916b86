"""evalstop.toml: what it means, and errors that name the line."""

from __future__ import annotations

import pytest

from evalstop.config.settings import Settings, make_policy, read_settings, words_of
from evalstop.core.actions import Advise, Stop
from evalstop.core.cluster import ClusterState
from evalstop.core.errors import InputError
from evalstop.core.events import (
    CapacityChanged,
    EvalReported,
    JobStarted,
    JobSubmitted,
    OperatorCommanded,
)
from evalstop.core.job import JobSpec
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint

DECLINE = (0.5, 0.6, 0.55, 0.5, 0.45)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "evalstop.toml"
        path.write_text(text)
        return path

    return write


def test_without_a_file_it_observes():
    assert read_settings(None) == Settings()
    assert read_settings(None).policy.mode == "observe"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cluster\n", r"line 1, column"),
        ("[cluster]\nslots = 4\n\n[policy]\nmode = 'stop'\n", r"line 5: Invalid enum"),
        ("[cluster]\nslots = 0\n", r"line 2: Expected `int` >= 1"),
        ("[cluster]\n# four\nsolts = 4\n", r"line 3.*solts.*known here: backend, .*slots"),
        ("[polcy]\n", r"line 1.*polcy.*known here: cluster, custody"),
        ("[[rules]]\nrule='none'\n[[rules]]\nteam = 'x'\n", r"line 4.*team.*known here: job_type"),
        ("[policy]\nrule = 'consecutve'\n", r"consecutive"),
        ("[policy]\nopt_out = 'off'\n", r"label=value"),
        ("[cluster]\nscheduler = 'sjf'\n", r"sjf-est"),
        ("[[exempt]]\nname='x'\nuntil='soon'\n", r"line 3"),
    ],
)
def test_errors_name_the_line_and_what_is_known(file, text, words):
    with pytest.raises(InputError, match=words):
        read_settings(file(text))


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_settings(tmp_path / "none.toml")


def actions_on(settings, *, tenant="t", job_type="rlhf", labels=None, commands=()):
    kernel = Kernel(ClusterState(8), make_policy(settings))
    spec = JobSpec(id="a", tenant=tenant, job_type=job_type, labels=labels or {})
    kernel.handle(CapacityChanged(time=0.0, gpus=8))
    kernel.handle(JobSubmitted(time=0.0, job=spec))
    kernel.handle(JobStarted(time=0.0, job="a", gpus=1))
    made = []
    for step, score in enumerate(DECLINE, start=1):
        made += kernel.handle(
            EvalReported(time=float(step), job="a", point=EvalPoint(step=step, score=score))
        )
    for command in commands:
        made += kernel.handle(OperatorCommanded(time=9.0, command=command, actor="ada", job="a"))
    return made


POLICY = "[policy]\nmode='{mode}'\nrule='consecutive:k=2'\nwarn_s=0\nbacked_s=0\n"


@pytest.mark.parametrize(
    ("mode", "extra", "job", "expected"),
    [
        ("observe", "", {}, [Advise]),
        ("advise", "", {}, [Advise]),
        ("enforce", "", {}, [Stop]),
        ("enforce", "", {"labels": {"evalstop": "off"}}, []),
        ("enforce", "protect_tenants=['t']\n", {}, []),
        ("enforce", "stops_per_tenant_hour=0\n", {}, [Advise]),
        ("enforce", "[[exempt]]\nname='t'\nuntil=2100-01-01T00:00:00Z\n", {}, []),
        ("enforce", "[[exempt]]\nname='t'\nuntil=1960-01-01T00:00:00Z\n", {}, [Stop]),
        ("enforce", "[[rules]]\ntenant='t'\nmode='observe'\n", {}, [Advise]),
        ("observe", "[[rules]]\nqueue='q'\nmode='enforce'\n", {"labels": {"queue": "q"}}, [Stop]),
        ("observe", "[[rules]]\nqueue='q'\nmode='enforce'\n", {}, [Advise]),
        ("enforce", "[[rules]]\njob_type='grpo'\nrule='none'\n", {}, []),
        ("enforce", "[[rules]]\ntenant='x'\nrule='none'\n", {}, [Stop]),
        (
            "enforce",
            "[[rules]]\ntenant='t'\nrule='none'\n[[rules]]\njob_type='rlhf'\nmode='observe'\n",
            {},
            [],
        ),
    ],
)
def test_every_setting_matters(file, mode, extra, job, expected):
    settings = read_settings(file(POLICY.format(mode=mode) + extra))
    assert [type(action) for action in actions_on(settings, **job)] == expected


def test_a_person_may_stop_or_approve_in_every_mode(file):
    for mode in ("observe", "advise"):
        settings = read_settings(file(POLICY.format(mode=mode)))
        advised, ordered = actions_on(settings, commands=["approve"])
        assert isinstance(advised, Advise)
        assert isinstance(ordered, Stop)
        assert ordered.author == "ada"


def test_the_words_for_the_log_are_the_deciding_settings_only(file):
    first = read_settings(file("[server]\nport=1\n"))
    assert words_of(first) == words_of(Settings())
    assert words_of(read_settings(file("[policy]\nmode='enforce'\n"))) != words_of(Settings())
