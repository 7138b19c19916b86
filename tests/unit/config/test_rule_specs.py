import pytest

from evalstop.config.rules import RULES, parse_rule
from evalstop.config.schedulers import parse_scheduler
from evalstop.core.errors import SpecError
from evalstop.detectors.consecutive import ConsecutiveDecline
from evalstop.detectors.drop import Drop
from evalstop.detectors.never import Never
from evalstop.policies.baselines import LossPlateau, StopAt

SPECS = [
    ("consecutive:k=2", "rlhf", ConsecutiveDecline(k=2)),
    ("consecutive:k=3", "anything", ConsecutiveDecline(k=3)),
    (" drop:g=4 , k=1 , unit=percent ", "lora", Drop(g=4.0, k=1, unit="percent")),
    ("stop-at:fraction=0.65", "rlhf", StopAt(fraction=0.65)),
    ("loss-plateau", "rlhf", LossPlateau()),
    ("none", "rlhf", Never()),
    ("paper", "rlhf", ConsecutiveDecline(k=2)),
    ("paper", "dpo", ConsecutiveDecline(k=3)),
    ("paper", "lora", Never()),
    ("rlhf=consecutive:k=2;dpo=consecutive:k=3;*=none", "other", Never()),
    ("grpo=consecutive:k=5", "ppo", ConsecutiveDecline(k=5)),
    ("grpo=consecutive:k=5", "RLOO", ConsecutiveDecline(k=5)),
    ("sft=consecutive:k=5", "lora", ConsecutiveDecline(k=5)),
    ("rlhf=consecutive:k=5", "dpo", Never()),
]


@pytest.mark.parametrize(("spec", "job_type", "rule"), SPECS)
def test_a_spec_makes_the_rule_for_a_job_type(spec, job_type, rule):
    assert parse_rule(spec).for_type(job_type) == rule


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_is_made_by_its_name_alone_and_says_what_it_costs(name):
    parse_rule(name)
    assert RULES[name].summary
    assert RULES[name].false_alarms
    for parameter in RULES[name].parameters:
        assert parameter.unit, f"{name}:{parameter.name} says no unit"


@pytest.mark.parametrize("spec", ["consecutive:k=2", "paper", "rlhf=cusum;*=none"])
def test_a_spec_is_repeated_as_given(spec):
    assert parse_rule(spec).spec == spec


BROKEN = [
    ("", "unknown rule"),
    ("consecutiv", "did you mean 'consecutive'"),
    ("moon", "the known ones are: default, "),
    ("consecutive:q=2", "no setting 'q'; it has: k"),
    ("none:k=1", "it has: none"),
    ("consecutive:k", "NAME\\[:key=value"),
    ("consecutive:k=", "NAME\\[:key=value"),
    ("consecutive:k=2,k=3", "sets 'k' twice"),
    ("consecutive:k=two", "whole number, but got 'two'"),
    ("consecutive:k=2.5", "whole number, but got '2.5'"),
    ("cusum:threshold=nan", "finite number, but got 'nan'"),
    ("cusum:threshold=inf", "finite number, but got 'inf'"),
    ("consecutive:k=0", "k must be a whole number >= 1"),
    ("drop:unit=furlong", "se, percent or absolute"),
    ("rlhf=consecutive;cusum", "TYPE=SPEC"),
    ("rlhf=;dpo=cusum", "TYPE=SPEC"),
    (";", "TYPE=SPEC"),
    (" ; ", "TYPE=SPEC"),
    ("rlhf=cusum;grpo=drop", "names the job type 'rlhf' twice"),
    ("rlhf=moon", "unknown rule 'moon'"),
]


@pytest.mark.parametrize(("spec", "what"), BROKEN)
def test_a_broken_spec_is_refused_with_what_is_known(spec, what):
    with pytest.raises(SpecError, match=what):
        parse_rule(spec)


@pytest.mark.parametrize("spec", [None, 3, b"scan", ["scan"]])
def test_a_spec_is_text(spec):
    with pytest.raises(SpecError, match="a rule is written as text"):
        parse_rule(spec)
    with pytest.raises(SpecError, match="a scheduler is written as text"):
        parse_scheduler(spec)
