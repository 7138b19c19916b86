"""Which rule applies to which job type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from msgspec import Struct

from evalstop.core.detector import Detector
from evalstop.core.errors import SpecError
from evalstop.core.job import canonical_job_type
from evalstop.core.settings import has_methods
from evalstop.detectors.never import Never

if TYPE_CHECKING:
    from collections.abc import Iterable

    from evalstop.core.events import EvalReported, LossReported
    from evalstop.core.job import JobView
    from evalstop.core.points import Verdict

__all__ = [
    "EVERY_OTHER",
    "RULE_LABEL",
    "Choice",
    "JobRule",
    "NamedRule",
    "Rule",
    "Rules",
    "Selector",
    "by_job_type",
]

EVERY_OTHER = "*"
"""The entry of a rule map for job types that have none of their own."""

RULE_LABEL = "rule"
"""The label in which a job asks for a rule of its own."""

S = TypeVar("S")


@runtime_checkable
class JobRule(Protocol[S]):
    """Judge that needs more than the curve: attained service, or the training loss."""

    def begin(self) -> S:
        """Return the state before the first event."""
        ...

    def judge(
        self, state: S, event: EvalReported | LossReported, job: JobView, now: float
    ) -> tuple[S, Verdict]:
        """Fold one event of the job into the state; return the new state and the verdict."""
        ...


Rule: TypeAlias = Detector[Any] | JobRule[Any]


class NamedRule(Struct, frozen=True):
    """A rule and the SPEC it was written as."""

    rule: Rule
    spec: str


class Selector(Struct, frozen=True, kw_only=True):
    """Which jobs: those of whom everything that is given here is true."""

    job_type: str = ""
    tenant: str = ""
    labels: Mapping[str, str] = {}

    def fits(self, job: JobView) -> bool:
        """Return whether a job is one of them."""
        if self.job_type and canonical_job_type(job.job_type) != canonical_job_type(self.job_type):
            return False
        if self.tenant and job.tenant != self.tenant:
            return False
        return all(job.labels.get(name) == value for name, value in self.labels.items())


def by_job_type(named: Iterable[tuple[str, NamedRule]], said: str) -> dict[str, NamedRule]:
    """Return rules by job type, in whatever way jobs may write it: grpo is rlhf.

    Args:
        named: names of job types, and their rules.
        said: who names them, and the verb, for the error.

    Raises:
        SpecError: a job type is named twice.
    """
    by_type: dict[str, NamedRule] = {}
    for kind, rule in named:
        job_type = canonical_job_type(kind)
        if job_type in by_type:
            msg = f"{said} the job type {job_type!r} twice ({kind.strip()!r}): keep one"
            raise SpecError(msg)
        by_type[job_type] = rule
    return by_type


class Rules(Struct, frozen=True):
    """A map from job type to rule; ``"*"`` is for all types that are not named.

    ``choices`` come first: the first whose selector fits a job brings its own map. Then a job's
    label ``rule`` counts, if it is one of ``choosable``.

    Example:
        >>> from evalstop.detectors.consecutive import ConsecutiveDecline
        >>> rules = Rules.of({"rlhf": ConsecutiveDecline(k=2)})
        >>> rules.for_type("grpo")
        ConsecutiveDecline(k=2)
        >>> rules.for_type("lora")
        Never()
    """

    by_type: Mapping[str, NamedRule]
    spec: str = ""
    choices: tuple[Choice, ...] = ()
    choosable: Mapping[str, Rules] = {}

    @staticmethod
    def of(rules: Mapping[str, Rule] | Rule) -> Rules:
        """Build a map from rule objects; one rule alone is for every type.

        Job types may be written in any way that jobs may write them: grpo is rlhf.

        Raises:
            SpecError: something is no rule, or a job type is named twice.
        """
        named: Mapping[Any, Rule] = rules if isinstance(rules, Mapping) else {EVERY_OTHER: rules}
        for kind, rule in named.items():
            if not has_methods(rule, "start", "step") and not has_methods(rule, "begin", "judge"):
                msg = (
                    "expected a rule, such as parse_rule('default') or ConsecutiveDecline(k=2), "
                    f"but got {rule!r}"
                )
                raise SpecError(msg)
            if not isinstance(kind, str):
                msg = f"expected job types by name, such as 'rlhf' or '*', but got {kind!r}"
                raise SpecError(msg)
        pairs = ((kind, NamedRule(rule, repr(rule))) for kind, rule in named.items())
        return Rules(by_job_type(pairs, "the rules name"))

    def for_job(self, job: JobView) -> NamedRule:
        """Return the rule for a job and its SPEC."""
        if not self.choices and not self.choosable:
            return self.named(job.job_type)
        for choice in self.choices:
            if choice.selector.fits(job):
                return choice.rules.named(job.job_type)
        asked = self.choosable.get(job.labels.get(RULE_LABEL, ""))
        return self.named(job.job_type) if asked is None else asked.named(job.job_type)

    def named(self, job_type: str) -> NamedRule:
        """Return the rule for a job type and its SPEC."""
        kind = canonical_job_type(job_type)
        return self.by_type.get(kind) or self.by_type.get(EVERY_OTHER) or _NONE

    def for_type(self, job_type: str) -> Rule:
        """Return the rule for a job type."""
        return self.named(job_type).rule


class Choice(Struct, frozen=True):
    """Rules for some jobs."""

    selector: Selector
    rules: Rules


_NONE = NamedRule(Never(), "none")
