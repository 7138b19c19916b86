"""Opening what the settings name: the log with its lease, the backend, snapshots."""

from __future__ import annotations

import logging
import os
import pwd
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from evalstop.backends.command import CommandBackend, CommandTemplate
from evalstop.backends.local import LocalBackend
from evalstop.backends.local.nvml import gpu_names, memory_in_use_mib, why_none
from evalstop.backends.ray import RayBackend
from evalstop.backends.slurm import SlurmBackend, SlurmClient, Tenants
from evalstop.config.object_store import allowed_of, check_object_store, open_objects
from evalstop.config.settings import BackendName, Settings, make_policy, words_of
from evalstop.core.errors import InputError, MissingExtraError
from evalstop.custody import FileCustody, ObjectCustody
from evalstop.custody.places import FilePlace, ObjectPlace, Place, RoutedCustody, RoutedPlace
from evalstop.ports import CheckpointStore
from evalstop.service.named_urls import NamedUrls
from evalstop.service.snapshot import Snapshots
from evalstop.service.snapshotter import fingerprint
from evalstop.store.lease import FileLease
from evalstop.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from evalstop.config.settings import CustodySettings
    from evalstop.core.policy import Policy
    from evalstop.ports import Backend, EventStore, Lease, SnapshotStore

__all__ = ["Opening", "await_lease", "open_backend", "open_custody", "open_store"]

_log = logging.getLogger(__name__)

LEASE_WAIT_S = 1.0


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


class OpenCustody(Struct, frozen=True, kw_only=True):
    """Custody, where trainers write, and what of it is in an object store."""

    pins: CheckpointStore
    place: Place
    urls: NamedUrls


def open_custody(custody: CustodySettings, folder: Path, documents: SnapshotStore) -> OpenCustody:
    """Open custody as the settings say; an object store is not asked anything yet.

    Raises:
        InputError: if what is said of an object store cannot be.
        MissingExtraError: if what it needs is not installed.
    """
    files = FileCustody(
        Path(custody.dir) if custody.dir else folder / "custody",
        marker=custody.marker,
        copy=custody.copy,
    )
    check_object_store(custody)
    urls = NamedUrls(documents, allowed_of(custody))
    if not custody.store:
        return OpenCustody(pins=files, place=FilePlace(), urls=urls)
    objects = open_objects(custody)
    kept = ObjectCustody(objects, custody.store, marker=custody.marker, how=custody.pin)
    return OpenCustody(
        pins=RoutedCustody(files, kept, urls.has),
        place=RoutedPlace(FilePlace(), ObjectPlace(objects)),
        urls=urls,
    )


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
                    f"this machine has no GPU that NVML shows ({why_none()}): set cluster.slots "
                    "to the number of jobs that may run side by side"
                )
                raise InputError(message)
            return LocalBackend(
                folder / "runs",
                devices,
                release_timeout_s=cluster.release_timeout_s,
                memory_in_use=memory_in_use_mib if slots is None else lambda _: None,
                memory_floor_mib=cluster.memory_floor_mib,
            )


def await_lease(lease: Lease) -> None:
    """Wait until this is the one active controller."""
    waited = False
    while not lease.acquire(LEASE_WAIT_S):
        if not waited:
            _log.warning("another controller is active; waiting to take over")
        waited = True


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
