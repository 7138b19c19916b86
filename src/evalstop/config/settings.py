"""``evalstop.toml``: what an operator can set, and the policy that comes of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from evalstop.config.object_store import check_object_store
from evalstop.config.rules import parse_rule
from evalstop.config.schedulers import parse_scheduler
from evalstop.config.toml import read_toml
from evalstop.core.errors import InputError
from evalstop.core.points import Kind
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.guard import Chain
from evalstop.policies.guards import Backed, Budget, Confirmed, OperatorDesk, Protect, Warn
from evalstop.policies.modes import ByMode, Mode
from evalstop.policies.rules import Choice, Selector

if TYPE_CHECKING:
    from pathlib import Path


__all__ = [
    "BackendName",
    "ChoiceSettings",
    "ClusterSettings",
    "CustodySettings",
    "Exemption",
    "FeedbackSettings",
    "NotifySettings",
    "PolicySettings",
    "ServerSettings",
    "Settings",
    "make_policy",
    "read_settings",
    "with_options",
    "words_of",
]

Seconds = Annotated[float, Meta(ge=0)]


class BackendName(StrEnum):
    """Who runs the jobs."""

    LOCAL = "local"
    SLURM = "slurm"
    COMMAND = "command"
    RAY = "ray"


class ClusterSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[cluster]``: who runs the jobs, and on what.

    Attributes:
        backend: local, slurm, command or ray.
        ray_address: dashboard of the Ray cluster, http://host:8265.
        slots: named slots of the local backend; left out, this machine's GPUs.
        scheduler: base scheduler; slurm and command place jobs themselves: native.
        poll_s: seconds between looks at the backend.
        release_timeout_s: seconds without proof after which GPUs are quarantined.
        memory_floor_mib: a GPU is free when less than this is in use.
        stop_command: how the command backend ends a job; see `evalstop.backends.command`.
        list_command: how it learns which jobs live.
        price_per_gpu_hour: for savings in money.
        undo_window_s: how long Slurm keeps a stopped job in its queue, held, so that the stop can
            be undone; 0 cancels at once.
        slurm_listing: text (squeue --Format, small) or json (squeue --json).
        command_timeout_s: after so many seconds a command of the scheduler is given up.
        tenants: which tenants the jobs of a Slurm account, or of a ``user:NAME``, may be of; the
            first is theirs where their comment says none.
    """

    backend: BackendName = BackendName.LOCAL
    slots: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    scheduler: str = ""
    poll_s: Annotated[float, Meta(gt=0)] | None = None
    release_timeout_s: Seconds = 30.0
    memory_floor_mib: Seconds = 500.0
    ray_address: str = "http://127.0.0.1:8265"
    stop_command: str = ""
    list_command: str = ""
    price_per_gpu_hour: Seconds | None = None
    undo_window_s: Seconds = 86_400.0
    slurm_listing: Literal["text", "json"] = "text"
    command_timeout_s: Annotated[float, Meta(gt=0)] = 20.0
    tenants: dict[str, tuple[str, ...]] = {}


class PolicySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[policy]``: which rule, and how far it may go.

    Attributes:
        mode: observe (says what it would have done), advise (asks people), enforce (stops).
        rule: SPEC or map of rules; see `evalstop rules`.
        warn_s: notice before a stop in which people can snooze or approve it.
        kinds: how far stops of one kind of decline may go where that is less than the mode, as
            ``degraded = "advise"``: overoptimised, degraded, declining, collapsed.
        confirm_s: how long to wait for a confirming evaluation; 0 asks for none. Left out, as long
            as one may take where ``[feedback]`` has an evaluator, else none is asked for.
        save_s: how long a stop waits for a last save where none was measured yet; 0 asks for
            none. Jobs without a save signal are not waited for.
        backed_s: how long a stop waits for a checkpoint to keep; 0 does not wait.
        stops_per_tenant_hour: at most so many stops a tenant and hour.
        protect_tenants: never stopped by policy.
        job_may_choose: rules (SPECs) of which a job may ask for one in its label ``rule``; a
            [[rules]] entry that fits the job and names a rule goes before.
        opt_out: label and value by which a job opts out, as ``label=value``.
    """

    mode: Mode = Mode.OBSERVE
    rule: str = "default"
    warn_s: Seconds = 600.0
    confirm_s: Seconds | None = None
    save_s: Seconds = 30.0
    backed_s: Seconds = 60.0
    stops_per_tenant_hour: Annotated[int, Meta(ge=0)] = 10
    protect_tenants: tuple[str, ...] = ()
    job_may_choose: tuple[str, ...] = ()
    opt_out: str = "evalstop=off"
    kinds: dict[Literal["overoptimised", "degraded", "declining", "collapsed"], Mode] = {}


class ChoiceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[rules]]``: another rule or mode for some jobs. The first that fits a job applies.

    A job fits if everything that is given here is the job's: type, tenant, queue (its label
    ``queue``), labels.
    """

    job_type: str = ""
    tenant: str = ""
    queue: str = ""
    labels: dict[str, str] = {}
    rule: str = ""
    mode: Mode | None = None


class Exemption(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[exempt]]``: a job or tenant that is not stopped by policy until a date."""

    name: str
    until: datetime


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[server]``: where it listens and keeps its state.

    Attributes:
        host, port: to listen at; port 0 for any free one.
        url: under which jobs reach it; empty for http://host:port.
        dir: where state lies; empty for ./evalstop-state.
        store: sqlite:FILE or postgresql://...; empty for a file in ``dir``.
    """

    url: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8787
    dir: str = ""
    store: str = ""


class CustodySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[custody]``: which checkpoints are kept, and how whole ones are told.

    Attributes:
        top: how many of a job's best to keep, beside its last.
        unscored: how many of the newest that have no score yet to keep: more, where evaluations
            lag behind the saves.
        copy: copy instead of linking, for trainers that overwrite files in place.
        marker: a file that trainers write last; empty for none.
        every_s: seconds between looks at a job's folder.
        settle_s: a checkpoint that changed less than this long ago may still be growing.
        dir: where pins lie; empty for a folder of the state.
        store: URL of a prefix of evalstop's own in an object store, s3://bucket/evalstop/; empty
            for none.
        allow: URLs under which jobs may have checkpoints there; ``{tenant}`` and ``{job}`` stand
            for the job's own. Nothing else is ever read or copied.
        pin: copy, or tag objects where they lie: that keeps off lifecycle rules by tag, and
            nobody who deletes.
        options: what fsspec's file system takes: endpoint_url, profile; never credentials.
        store_every_s: seconds between looks at a job there: each costs requests.
        store_wait_s: seconds that a report, or a stop, waits for a pin there.
        store_timeout_s: bound of one request.
    """

    top: Annotated[int, Meta(ge=1)] = 1
    unscored: Annotated[int, Meta(ge=1)] = 3
    copy: bool = False
    marker: str = ""
    every_s: Annotated[float, Meta(gt=0)] = 1.0
    settle_s: Seconds = 1.0
    dir: str = ""
    store: str = ""
    allow: tuple[str, ...] = ()
    pin: Literal["copy", "tag"] = "copy"
    options: dict[str, Any] = {}
    store_every_s: Annotated[float, Meta(gt=0)] = 10.0
    store_wait_s: Seconds = 5.0
    store_timeout_s: Annotated[float, Meta(gt=0)] = 60.0


class FeedbackSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[feedback]``: scores that are pulled in, and evalstop's own evaluator.

    Attributes:
        every_s: seconds between looks at the files that jobs write.
        evaluate: command run on each new checkpoint; see `evalstop.feedback.evaluator`.
        gpus: GPUs of one evaluation.
        devices: GPUs set aside for evaluations, by name; empty if the command finds its own.
        at_once: most evaluations side by side where no devices are set aside.
        time_limit_s: after so many seconds an evaluation is killed.
        tries: how often one checkpoint is tried.
        suite: identity of the eval suite; change it when scores stop being comparable.
    """

    every_s: Annotated[float, Meta(gt=0)] = 1.0
    evaluate: str = ""
    gpus: Annotated[int, Meta(ge=0)] = 1
    devices: tuple[str, ...] = ()
    at_once: Annotated[int, Meta(ge=1)] = 1
    time_limit_s: Annotated[float, Meta(gt=0)] = 3600.0
    tries: Annotated[int, Meta(ge=1)] = 3
    suite: str = ""


class NotifySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[[notify]]``: who is told of stops; a webhook, or mail where ``smtp_host`` is set.

    Attributes:
        name: unique; what waits is kept under it.
        url: of a webhook.
        form: json, or slack for Slack's incoming webhooks.
        secret_file: file with the secret that a webhook is signed with.
        kinds: advice, stopping, stopped, operator; empty for all.
        tenants: only these; empty for all.
        smtp_host, smtp_port: the mail server.
        sender: address that mails come from.
        to: addresses that get every mail.
        to_owner: mail the job's owner too, where its label ``owner`` is an address.
        starttls: demand encryption.
        user: name to log in with.
        password_file: file with the password for it.
    """

    name: str
    url: str = ""
    form: Literal["json", "slack"] = "json"
    secret_file: str = ""
    kinds: tuple[Literal["advice", "stopping", "stopped", "operator"], ...] = ()
    tenants: tuple[str, ...] = ()
    smtp_host: str = ""
    smtp_port: Annotated[int, Meta(ge=1, le=65_535)] = 25
    sender: str = ""
    to: tuple[str, ...] = ()
    to_owner: bool = True
    starttls: bool = False
    user: str = ""
    password_file: str = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole ``evalstop.toml``; everything has a default."""

    cluster: ClusterSettings = ClusterSettings()
    policy: PolicySettings = PolicySettings()
    rules: tuple[ChoiceSettings, ...] = ()
    exempt: tuple[Exemption, ...] = ()
    server: ServerSettings = ServerSettings()
    custody: CustodySettings = CustodySettings()
    feedback: FeedbackSettings = FeedbackSettings()
    notify: tuple[NotifySettings, ...] = ()


def read_settings(path: Path | None) -> Settings:
    """Read a file of settings; the defaults where there is none.

    Raises:
        ReadError: if it cannot be read or does not fit, with the line.
    """
    settings = Settings() if path is None else read_toml(path, Settings)
    make_policy(settings)  # what it names must exist
    check_object_store(settings.custody)
    return settings


def with_options(
    settings: Settings, *, host: str | None, port: int | None, slots: int | None, mode: str | None
) -> Settings:
    """Return the settings with what the command line says in their place.

    Raises:
        InputError: if the mode is none of the three.
    """
    server, cluster, policy = settings.server, settings.cluster, settings.policy
    if mode is not None:
        if mode not in set(Mode):
            message = f"expected the mode observe, advise or enforce, but got {mode!r}"
            raise InputError(message)
        policy = msgspec.structs.replace(policy, mode=Mode(mode))
    if host is not None:
        server = msgspec.structs.replace(server, host=host)
    if port is not None:
        server = msgspec.structs.replace(server, port=port)
    if slots is not None:
        cluster = msgspec.structs.replace(cluster, slots=slots)
    return msgspec.structs.replace(settings, server=server, cluster=cluster, policy=policy)


def words_of(settings: Settings) -> str:
    """Return what decides in one line of JSON: the version of the policy, for the log."""
    deciding = {
        "scheduler": _scheduler_of(settings.cluster),
        "policy": msgspec.structs.replace(settings.policy, confirm_s=_confirm_s(settings)),
        "rules": settings.rules,
        "exempt": settings.exempt,
    }
    return msgspec.json.encode(deciding, order="deterministic").decode()


def _scheduler_of(cluster: ClusterSettings) -> str:
    if cluster.scheduler:
        return cluster.scheduler
    ours = cluster.backend in {BackendName.LOCAL, BackendName.RAY}
    return "srtf-est" if ours else "native"


def _confirm_s(settings: Settings) -> float:
    """Return how long a stop waits to be confirmed (R28): who can evaluate again, does."""
    if settings.policy.confirm_s is not None:
        return settings.policy.confirm_s
    return settings.feedback.time_limit_s if settings.feedback.evaluate else 0.0


def make_policy(settings: Settings) -> EvalStop:
    """Build the policy: EvalStop over the base scheduler, with its guards.

    Raises:
        InputError: on an unknown rule, scheduler, or a bad value.
    """
    policy = settings.policy
    label, equals, value = policy.opt_out.partition("=")
    if policy.opt_out and not (label and equals and value):
        message = f"policy.opt_out must be written label=value, but got {policy.opt_out!r}"
        raise InputError(message)
    rules = parse_rule(policy.rule)
    choices = []
    modes = []
    for choice in settings.rules:
        selector = Selector(
            job_type=choice.job_type,
            tenant=choice.tenant,
            labels=choice.labels | ({"queue": choice.queue} if choice.queue else {}),
        )
        if choice.rule:
            choices.append(Choice(selector, parse_rule(choice.rule)))
        if choice.mode is not None:
            modes.append((selector, choice.mode))
    choosable = {spec.strip(): parse_rule(spec) for spec in policy.job_may_choose}
    rules = msgspec.structs.replace(rules, choices=tuple(choices), choosable=choosable)
    confirm_s = _confirm_s(settings)
    guards = [
        OperatorDesk(),
        Protect(
            labels={label: value} if policy.opt_out else {"\0": "\0"},
            tenants=policy.protect_tenants,
            until={one.name: one.until.timestamp() for one in settings.exempt},
        ),
        ByMode(policy.mode, modes, {Kind(kind): mode for kind, mode in policy.kinds.items()}),
        *((Confirmed(limit_s=confirm_s),) if confirm_s else ()),
        *((Backed(limit_s=policy.backed_s),) if policy.backed_s else ()),
        *((Warn(window_s=policy.warn_s),) if policy.warn_s else ()),
        Budget(stops=policy.stops_per_tenant_hour),
    ]
    return EvalStop(
        base=parse_scheduler(_scheduler_of(settings.cluster)), rules=rules, guard=Chain(guards)
    )
