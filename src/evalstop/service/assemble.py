"""Putting a platform together from its settings: who knows whom, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.backends.local import LocalBackend
from evalstop.config.rules import RULES
from evalstop.config.settings import BackendName, Settings, make_policy, words_of
from evalstop.ports import Backend, EventStore, Lease, SnapshotStore
from evalstop.service.carry_out import BackendCarryOut
from evalstop.service.clock import SystemClock
from evalstop.service.controller import Controller
from evalstop.service.custodian import Custodian
from evalstop.service.last_save import LastSave
from evalstop.service.live_watches import LiveWatches
from evalstop.service.notify import Outbox, targets_of
from evalstop.service.opening import (
    OpenCustody,
    Opening,
    await_lease,
    open_backend,
    open_custody,
    open_store,
)
from evalstop.service.platform import Parts, Platform
from evalstop.service.poller import Poller
from evalstop.service.puller import Puller, make_puller
from evalstop.service.reload import Reloader
from evalstop.service.snapshotter import SnapshotKeeper
from evalstop.service.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evalstop.core.actions import Stop
    from evalstop.ports import Order

__all__ = ["Running", "start"]

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


class _Opened(Struct, frozen=True, kw_only=True):
    """What lies outside the process, opened."""

    settings: Settings
    folder: Path
    url: str
    store: EventStore
    documents: SnapshotStore
    lease: Lease
    tokens: Tokens
    backend: Backend
    custody: OpenCustody


class _Core(Struct, frozen=True, kw_only=True):
    """What decides, and what carries decisions out."""

    controller: Controller
    carry_out: BackendCarryOut
    custodian: Custodian
    last_save: LastSave
    watches: LiveWatches
    opening: Opening


class _Sides(Struct, frozen=True, kw_only=True):
    """What brings scores in, tells people, and looks after snapshots and settings."""

    puller: Puller
    outbox: Outbox
    keeper: SnapshotKeeper
    reloader: Reloader


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
    opened = _open(settings, folder, url)
    core = _recover(opened)
    sides = _surround(opened, core, config=config, read=read)
    core.custodian.keep_in_use(sides.puller.in_use)
    platform = Platform(_parts(opened, core, sides))
    core.controller.start()
    platform.configured(words_of(settings))
    local = settings.cluster.backend is BackendName.LOCAL
    every_s = settings.cluster.poll_s or (_POLL_LOCAL_S if local else _POLL_OTHER_S)
    poller = Poller(core.carry_out, every_s=every_s)
    core.carry_out.look().result()
    for thread in (
        poller,
        core.custodian,
        sides.keeper,
        sides.puller,
        sides.outbox,
        sides.reloader,
    ):
        thread.start()
    return Running(
        platform=platform,
        tokens=opened.tokens,
        poller=poller,
        custodian=core.custodian,
        keeper=sides.keeper,
        puller=sides.puller,
        outbox=sides.outbox,
        reloader=sides.reloader,
        lease=opened.lease,
    )


def _open(settings: Settings, folder: Path, url: str) -> _Opened:
    """Open the log, wait until this is the one controller, and open the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    store, documents, lease = open_store(settings, folder)
    await_lease(lease)
    return _Opened(
        settings=settings,
        folder=folder,
        url=url,
        store=store,
        documents=documents,
        lease=lease,
        tokens=Tokens(documents),
        backend=open_backend(settings, folder),
        custody=open_custody(settings.custody, folder, documents),
    )


def _recover(opened: _Opened) -> _Core:
    """Fold the log; what no event has acknowledged is sent again."""
    settings = opened.settings

    def environment(job: str) -> Mapping[str, str]:
        return {
            "EVALSTOP_URL": opened.url,
            "EVALSTOP_JOB_ID": job,
            "EVALSTOP_TOKEN": opened.tokens.of_job(job),
            # A run that goes back after a restart opens a branch (R11), it repeats nothing.
            "EVALSTOP_ATTEMPT": str(max(0, controller.ledger.jobs[job].launched - 1)),
        }

    custodian = Custodian(
        opened.custody.pins,
        opened.documents,
        every_s=settings.custody.every_s,
        settle_s=settings.custody.settle_s,
        top=settings.custody.top,
        unscored=settings.custody.unscored,
        place=opened.custody.place,
        urls=opened.custody.urls,
        url_every_s=settings.custody.store_every_s,
        wait_s=settings.custody.store_wait_s,
    )
    last_save = LastSave(
        opened.backend,
        opened.documents,
        saved=lambda job: controller.ledger.jobs[job].saved,
        look_soon=custodian.look_soon,
        first_s=settings.policy.save_s,
    )

    def before_stop(stop: Stop, order: Order) -> None:
        last_save(stop, order)
        custodian.settle(stop.job)

    carry_out = BackendCarryOut(
        opened.backend, opened.documents, environment=environment, before_stop=before_stop
    )
    opening = Opening(settings=settings, folder=str(opened.folder))
    controller = Controller(
        store=opened.store,
        policy=make_policy(settings),
        clock=SystemClock(),
        carry_out=carry_out,
        snapshots=opening.snapshots(),
    )
    custodian.attach(controller)
    return _Core(
        controller=controller,
        carry_out=carry_out,
        custodian=custodian,
        last_save=last_save,
        watches=LiveWatches(controller),
        opening=opening,
    )


def _surround(
    opened: _Opened, core: _Core, *, config: Path | None, read: Callable[[], Settings]
) -> _Sides:
    """Make what listens to the controller and asks it; nothing runs yet."""
    settings, controller = opened.settings, core.controller
    keeper = SnapshotKeeper(
        core.opening, lambda: controller.sequence, since=controller.since_snapshot
    )
    return _Sides(
        puller=make_puller(
            settings.feedback,
            controller=controller,
            documents=opened.documents,
            store=opened.store,
            pins=opened.custody.pins,
            watches=core.watches,
            folder=opened.folder / "evaluations",
        ),
        outbox=Outbox(
            controller,
            store=opened.store,
            documents=opened.documents,
            targets=targets_of(settings.notify),
        ),
        keeper=keeper,
        reloader=Reloader(
            controller,
            opened.store,
            read=read,
            path=config,
            settings=settings,
            reloaded=lambda new: keeper.use(Opening(settings=new, folder=str(opened.folder))),
        ),
    )


def _parts(opened: _Opened, core: _Core, sides: _Sides) -> Parts:
    """Return what a platform is made of."""
    backend = opened.backend
    return Parts(
        controller=core.controller,
        carry_out=core.carry_out,
        backend=backend,
        store=opened.store,
        documents=opened.documents,
        custodian=core.custodian,
        tokens=opened.tokens,
        watches=core.watches,
        false_alarms={name: entry.false_alarms for name, entry in RULES.items()},
        price_per_gpu_hour=opened.settings.cluster.price_per_gpu_hour,
        url=opened.url,
        before_undo=sides.puller.set_apart,
        logs=backend.run_folder if isinstance(backend, LocalBackend) else None,
        more_troubles=(
            sides.puller.troubles,
            sides.outbox.troubles,
            sides.reloader.troubles,
            core.last_save.troubles,
        ),
    )
