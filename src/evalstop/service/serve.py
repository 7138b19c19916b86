"""``evalstop up``: put the platform together from its settings and serve it."""

from __future__ import annotations

import logging
import os
import pwd
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from msgspec import Struct

from evalstop.backends.command import CommandBackend, CommandTemplate
from evalstop.backends.local import LocalBackend
from evalstop.backends.local.nvml import gpu_names, memory_in_use_mib
from evalstop.backends.ray import RayBackend
from evalstop.backends.slurm import SlurmBackend, SlurmClient, Tenants
from evalstop.config.rules import RULES
from evalstop.config.settings import BackendName, Settings, make_policy, words_of
from evalstop.core.errors import InputError, MissingExtraError
from evalstop.custody import FileCustody
from evalstop.ports import EventStore, Lease, SnapshotStore
from evalstop.service.api import create_app
from evalstop.service.carry_out import BackendCarryOut
from evalstop.service.clock import SystemClock
from evalstop.service.controller import Controller
from evalstop.service.custodian import Custodian
from evalstop.service.dashboard import add_dashboard
from evalstop.service.last_save import LastSave
from evalstop.service.notify import Outbox, targets_of
from evalstop.service.pauses import keep_pauses_short, tcp_listener
from evalstop.service.platform import Parts, Platform
from evalstop.service.poller import Poller
from evalstop.service.prometheus import add_metrics
from evalstop.service.puller import Puller, make_puller
from evalstop.service.reload import LiveWatches, Reloader
from evalstop.service.snapshot import Snapshots
from evalstop.service.snapshotter import SnapshotKeeper, fingerprint
from evalstop.service.tokens import Principal, Scope, Tokens
from evalstop.store.lease import FileLease
from evalstop.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evalstop.core.policy import Policy
    from evalstop.ports import Backend

__all__ = ["Running", "open_store", "serve", "start"]

_log = logging.getLogger(__name__)

ADMIN_TOKEN_FILE = "admin-token"  # noqa: S105 -- the name of a file
LEASE_WAIT_S = 1.0
STREAMS_MAY_LAST_S = 2
_BACKLOG = 2048
_POLL_LOCAL_S = 0.1
_POLL_OTHER_S = 2.0


class Running(Struct, frozen=True, kw_only=True):
    """A platform whose threads run."""

    platform: Platform
    tokens: Tokens
    poller: Poller
    custodian: Custodian
    keeper: SnapshotKeeper
    puller: Puller
    outbox: Outbox
    reloader: Reloader
    lease: Lease

    def close(self) -> None:
        """End all threads; jobs go on."""
        self.reloader.close()
        self.keeper.close()
        self.poller.close()
        self.puller.close()
        self.custodian.close()
        self.outbox.close()
        self.platform.controller.close()
        self.lease.release()


def open_store(settings: Settings, folder: Path) -> tuple[EventStore, SnapshotStore, Lease]:
    """Open the log that the settings name, with its lease.

    Raises:
        StoreError: if it cannot be opened, or a newer evalstop wrote it.
    """
    address = settings.server.store
    if address.startswith(("postgresql://", "postgres://")):
        try:
            postgres = import_module("evalstop.store.postgres")
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "psycopg", "postgres") from error
        server: SqliteStore = postgres.PostgresStore(address)
        lease: Lease = postgres.PostgresLease(address)
        return server, server, lease
    if address and not address.startswith("sqlite:"):
        message = f"server.store must be sqlite:FILE or postgresql://..., but got {address!r}"
        raise InputError(message)
    path = Path(address.removeprefix("sqlite:")) if address else folder / "evalstop.sqlite"
    store = SqliteStore(path)
    return store, store, FileLease(path.with_suffix(".lease"))


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without a name
        return ""


def open_backend(settings: Settings, folder: Path) -> Backend:
    """Open the backend that the settings name.

    Raises:
        InputError: if what it needs is not set.
    """
    cluster = settings.cluster
    match cluster.backend:
        case BackendName.SLURM:
            return SlurmBackend(
                SlurmClient(listing=cluster.slurm_listing, time_limit_s=cluster.command_timeout_s),
                undo_window_s=cluster.undo_window_s,
                release_limit_s=cluster.release_timeout_s,
                tenants=Tenants(allowed=cluster.tenants, own_user=_own_user()),
            )
        case BackendName.COMMAND:
            if not cluster.stop_command:
                message = "the command backend needs cluster.stop_command: how is a job ended?"
                raise InputError(message)
            limit = cluster.command_timeout_s
            listed = cluster.list_command
            living = CommandTemplate(listed, time_limit_s=limit) if listed else None
            return CommandBackend(
                folder / "command",
                stop=CommandTemplate(cluster.stop_command, time_limit_s=limit),
                living=living,
                release_limit_s=cluster.release_timeout_s,
            )
        case BackendName.RAY:
            return RayBackend(cluster.ray_address, release_timeout_s=cluster.release_timeout_s)
        case BackendName.LOCAL:
            slots = cluster.slots
            devices = gpu_names() if slots is None else tuple(map(str, range(slots)))
            if not devices:
                message = (
                    "this machine has no GPU that NVML shows: set cluster.slots to the number of "
                    "jobs that may run side by side"
                )
                raise InputError(message)
            return LocalBackend(
                folder / "runs",
                devices,
                release_timeout_s=cluster.release_timeout_s,
                memory_in_use=memory_in_use_mib if slots is None else lambda _: None,
                memory_floor_mib=cluster.memory_floor_mib,
            )


def start(
    settings: Settings,
    folder: Path,
    *,
    url: str,
    config: Path | None = None,
    read: Callable[[], Settings] = Settings,
) -> Running:
    """Wait for the lease, recover, and start all threads.

    Args:
        settings: what the operator set.
        folder: where state lies.
        url: under which jobs reach this server.
        config: the file of settings, which is watched; None to watch nothing.
        read: reads the settings again.

    Raises:
        StoreError, InputError: if something cannot be opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store, documents, lease = open_store(settings, folder)
    waited = False
    while not lease.acquire(LEASE_WAIT_S):
        if not waited:
            _log.warning("another controller is active; waiting to take over")
        waited = True
    tokens = Tokens(documents)
    policy = make_policy(settings)
    backend = open_backend(settings, folder)

    def environment(job: str) -> Mapping[str, str]:
        return {
            "EVALSTOP_URL": url,
            "EVALSTOP_JOB_ID": job,
            "EVALSTOP_TOKEN": tokens.of_job(job),
            # A run that goes back after a restart opens a branch (R11), it repeats nothing.
            "EVALSTOP_ATTEMPT": str(max(0, controller.ledger.jobs[job].launched - 1)),
        }

    custody = settings.custody
    pins = FileCustody(
        Path(custody.dir) if custody.dir else folder / "custody",
        marker=custody.marker,
        copy=custody.copy,
    )
    custodian = Custodian(
        pins,
        documents,
        every_s=custody.every_s,
        settle_s=custody.settle_s,
        top=custody.top,
    )
    last_save = LastSave(
        backend,
        documents,
        saved=lambda job: controller.ledger.jobs[job].saved,
        look_soon=custodian.look_soon,
        first_s=settings.policy.save_s,
    )
    carry_out = BackendCarryOut(backend, documents, environment=environment, before_stop=last_save)
    opening = Opening(settings=settings, folder=str(folder))
    controller = Controller(
        store=store,
        policy=policy,
        clock=SystemClock(),
        carry_out=carry_out,
        snapshots=opening.snapshots(),
    )
    watches = LiveWatches(controller)
    custodian.attach(controller)
    puller = make_puller(
        settings.feedback,
        controller=controller,
        documents=documents,
        store=store,
        pins=pins,
        watches=watches,
        folder=folder / "evaluations",
    )
    keeper = SnapshotKeeper(opening, lambda: controller.sequence, since=controller.since_snapshot)
    reloader = Reloader(
        controller,
        store,
        read=read,
        path=config,
        settings=settings,
        reloaded=lambda new: keeper.use(Opening(settings=new, folder=str(folder))),
    )
    targets = targets_of(settings.notify)
    outbox = Outbox(controller, store=store, documents=documents, targets=targets)
    platform = Platform(
        Parts(
            controller=controller,
            carry_out=carry_out,
            backend=backend,
            store=store,
            documents=documents,
            custodian=custodian,
            tokens=tokens,
            watches=watches,
            false_alarms={name: entry.false_alarms for name, entry in RULES.items()},
            price_per_gpu_hour=settings.cluster.price_per_gpu_hour,
            url=url,
            before_undo=puller.set_apart,
            logs=backend.run_folder if isinstance(backend, LocalBackend) else None,
            more_troubles=(
                puller.troubles,
                outbox.troubles,
                reloader.troubles,
                last_save.troubles,
            ),
        )
    )
    controller.start()
    platform.configured(words_of(settings))
    local = settings.cluster.backend is BackendName.LOCAL
    every_s = settings.cluster.poll_s or (_POLL_LOCAL_S if local else _POLL_OTHER_S)
    poller = Poller(carry_out, every_s=every_s)
    carry_out.look().result()
    poller.start()
    for thread in (custodian, keeper, puller, outbox, reloader):
        thread.start()
    return Running(
        platform=platform,
        tokens=tokens,
        poller=poller,
        custodian=custodian,
        keeper=keeper,
        puller=puller,
        outbox=outbox,
        reloader=reloader,
        lease=lease,
    )


class Opening(Struct, frozen=True, kw_only=True):
    """Opens log, policy and snapshots; travels to the process that makes snapshots."""

    settings: Settings
    folder: str

    def snapshots(self) -> Snapshots:
        """Return where snapshots lie."""
        folder = Path(self.folder) / "snapshots"
        return Snapshots(folder, fingerprint(words_of(self.settings)))

    def __call__(self) -> tuple[EventStore, Policy, Snapshots]:
        """Open all three."""
        store, _, _ = open_store(self.settings, Path(self.folder))
        return store, make_policy(self.settings), self.snapshots()


def admin_token_file(folder: Path, tokens: Tokens) -> Path:
    """Return the file that holds the first admin token, made on the first start."""
    path = folder / ADMIN_TOKEN_FILE
    if not path.exists():
        token = tokens.make(Principal(name="admin", scope=Scope.ADMIN))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(token + "\n")
    return path


def serve(
    read: Callable[[], Settings],
    folder: Path,
    *,
    config: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
    listening: Callable[[dict[str, str]], None] = lambda _: None,
) -> None:
    """Serve until interrupted; jobs go on without us.

    Args:
        read: reads what the operator set; called again when ``config`` changes.
        folder: where state lies.
        config: the file of settings; None where there is none.
        tell: called with lines for the operator.
        listening: called once with url, mode, dir and admin_token_file when it takes reports.
    """
    settings = read()
    server = settings.server
    listener = tcp_listener()
    url = f"http://{server.host}:{server.port}"
    tell(f"evalstop is starting, state in {folder}")
    if server.port == 0:
        listener.bind((server.host, 0))
        url = f"http://{server.host}:{listener.getsockname()[1]}"
    url = server.url or url
    running = start(settings, folder, url=url, config=config, read=read)
    try:
        if server.port:
            listener.bind((server.host, server.port))
        listener.listen(_BACKLOG)  # whoever reads that we listen may connect at once
        token = admin_token_file(folder, running.tokens)
        app = create_app(running.platform, running.tokens)
        add_dashboard(app, running.platform, running.tokens, app.state.gate)
        add_metrics(app, running.platform)
        keep_pauses_short()
        tell(f"evalstop listens at {url} ({settings.policy.mode.value} mode)")
        tell(f"the admin token lies in {token}")
        where = {"dir": str(folder), "admin_token_file": str(token)}
        listening({"url": url, "mode": settings.policy.mode.value} | where)
        uvicorn_server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                lifespan="off",
                # Streams of events never end by themselves: an open page must not keep us.
                timeout_graceful_shutdown=STREAMS_MAY_LAST_S,
            )
        )
        threading.Thread(
            target=_end_when_deposed, args=(running, uvicorn_server), daemon=True
        ).start()
        uvicorn_server.run(sockets=[listener])
    finally:
        running.close()
        listener.close()


def _end_when_deposed(running: Running, server: uvicorn.Server) -> None:
    running.platform.controller.deposed.wait()
    server.should_exit = True
