"""A snapshot and the rest of the log are the whole log."""

from __future__ import annotations

import random
from collections import deque
from enum import Enum
from types import MappingProxyType

import msgspec
import pytest

from evalstop.config.rules import RULES, parse_rule
from evalstop.config.settings import ClusterSettings, PolicySettings, Settings, make_policy
from evalstop.core.actions import Start
from evalstop.core.cluster import ClusterState
from evalstop.core.events import CapacityChanged, EvalReported, JobEnded, JobStarted, JobSubmitted
from evalstop.core.job import JobSpec
from evalstop.core.kernel import Kernel
from evalstop.core.points import EvalPoint, State
from evalstop.policies.evalstop import EvalStop
from evalstop.policies.modes import Mode
from evalstop.ports import Entry
from evalstop.schedulers.fifo import Fifo
from evalstop.service import snapshot, snapshotter
from evalstop.service.graph import GraphError, from_node, to_node
from evalstop.service.snapshot import Snapshots, fold
from evalstop.service.snapshotter import SnapshotKeeper, fingerprint
from evalstop.store.sqlite import SqliteStore
from evalstop.testing.backend import eventually
from evalstop.testing.store import story


def again(value):
    return from_node(msgspec.json.decode(msgspec.json.encode(to_node(value))))


def test_values_come_back_as_they_were():
    value = {
        1: [1.0, 2, "x", None, True],
        "t": (1, (2.5, float("inf"))),
        "s": {1, 2},
        "z": frozenset({"a"}),
        "q": deque([1, 2]),
        "m": MappingProxyType({"a": 1}),
        "e": State.ALARM,
        "o": JobSpec(id="a", labels={"x": "y"}),
        "big": 2**64 - 1,
        "p": [EvalPoint(step=1, score=0.5), EvalPoint(step=2, score=0.6, stderr=0.1)],
        "n": [EvalPoint(step=1)],
        "b": bytes(range(256)),
    }
    assert repr(again(value)) == repr(value)
    assert type(again(value)["q"]) is deque


@pytest.mark.parametrize("stderr", [None, 0.02])
@pytest.mark.parametrize("rule", [name for name in RULES if name != "bayes"])
def test_a_watched_curve_goes_on_as_if_nothing_had_been(rule, stderr):
    policy = EvalStop(base=Fifo(), rules=parse_rule(rule))
    kernel = Kernel(ClusterState(2), policy)
    kernel.handle(JobSubmitted(time=0.0, job=JobSpec(id="a", gpus=1, job_type="rlhf")))
    kernel.handle(JobStarted(time=0.0, job="a", gpus=1))
    scores = [0.5, 0.58, 0.61, 0.6, 0.62, 0.59, 0.55, 0.52, 0.5, 0.45, 0.41, 0.38]

    def report(policy, step):
        point = EvalPoint(step=step, score=scores[step], stderr=stderr)
        event = EvalReported(time=float(step), job="a", point=point)
        policy.decide(event, kernel.state.view)
        return policy.watches["a"].verdict

    for step in range(8):
        report(policy, step)
    back = again(policy)
    for step in range(8, len(scores)):
        assert repr(report(back, step)) == repr(report(policy, step))


def test_what_is_shared_stays_shared():
    entry = (1.0, 0, "a")
    value = again({"heap": [entry], "live": {"a": entry}})
    assert value["heap"][0] is value["live"]["a"]
    loop = []
    loop.append(loop)
    made = again(loop)
    assert made[0] is made


def test_a_list_with_the_same_evaluations_is_written_once():
    points = [EvalPoint(step=step, score=0.5) for step in range(100)]
    node = to_node([points, list(points)])
    assert node[2] == ["="]
    first, second = from_node(msgspec.json.decode(msgspec.json.encode(node)))
    assert first == second == points
    assert first is not second


@pytest.mark.parametrize("value", [lambda: None, random.Random(1), object()])
def test_what_is_not_ours_is_refused(value):
    with pytest.raises(GraphError):
        to_node([value])


@pytest.mark.parametrize(
    "node", [["o", "os:system"], ["o", "subprocess:Popen", "args", "x"], ["e", "json:loads", "1"]]
)
def test_a_snapshot_cannot_name_foreign_classes(node):
    with pytest.raises(GraphError):
        from_node(node)


def decline(platform, job, count=6):
    for step in range(1, count):
        if platform.phase(job) == "running":
            score = 0.4 + 0.1 * step if step < 4 else 1.0 - 0.1 * step
            platform.report(job, step, score, stderr=0.02)


def busy_log(make_platform, scheduler):
    """Return a platform with stops, preemptions, waiting, ended and running jobs."""
    settings = Settings(
        cluster=ClusterSettings(slots=4, scheduler=scheduler),
        policy=PolicySettings(
            mode=Mode.ENFORCE, rule="consecutive:k=2", warn_s=30, backed_s=5, confirm_s=3
        ),
    )

    class Busy(make_platform):
        def policy(self):
            return make_policy(settings)

    platform = Busy(gpus=4)
    platform.look()
    rng = random.Random(1)
    for number in range(14):
        platform.submit(
            f"j{number}", gpus=rng.choice([1, 2, 4]), estimated_s=float(rng.randrange(5, 500))
        )
        platform.look()
        for name in list(platform.controller.kernel.state.view.jobs):
            if rng.random() < 0.6:
                decline(platform, name)
            elif platform.phase(name) == "running" and rng.random() < 0.3:
                platform.backend.finish(name)
        platform.clock.advance(rng.choice([1.0, 20.0]))
        platform.controller.settle()
        platform.look()
    return platform, settings


def plain(value):
    """Return what a value holds, whatever it shares."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple, deque)):
        return [plain(part) for part in value]
    if isinstance(value, (dict, MappingProxyType)):
        return {repr(key): plain(part) for key, part in value.items()}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if type(value).__module__.startswith("evalstop.") and not isinstance(value, Enum):
        names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ())]
        return {name: plain(getattr(value, name)) for name in names if hasattr(value, name)}
    return repr(value)


def whole(folded):
    state = folded.kernel.state
    return plain(
        [state.view.jobs, state.ended, folded.kernel.policy, folded.ledger, folded.recovered]
    )


@pytest.mark.parametrize("scheduler", ["fifo", "sjf-est", "srtf-est", "srsf-est"])
def test_snapshot_and_rest_are_the_whole(make_platform, tmp_path, scheduler):
    platform, settings = busy_log(make_platform, scheduler)
    entries = list(platform.store.read())
    expected = fold(platform.store, make_policy(settings), None)
    assert expected.recovered.changed == 0
    assert sum(record.stop is not None for record in expected.ledger.jobs.values()) > 1
    for cut in range(1, len(entries), 7):
        prefix = make_platform()
        prefix.store._rows = platform.store._rows[:cut]
        snapshots = Snapshots(tmp_path / str(cut), "x")
        snapshots.write(fold(prefix.store, make_policy(settings), None))
        assert snapshots.newest().recovered.sequence == cut
        folded = fold(platform.store, make_policy(settings), snapshots)
        folded.kernel.state.check()
        assert whole(folded) == whole(expected)


@pytest.mark.parametrize("gpus", [6, {"h100": 4, "a100": 2}])
def test_node_types_come_back(gpus):
    state = ClusterState(gpus)
    state.apply(JobSubmitted(time=1.0, job=JobSpec(id="a", gpus=2)))
    where = list(state.view.pools)[-1]
    state.promise(Start(job="a", gpus=2, pool=where))
    restored = snapshot._state_of(again(snapshot._parts_of(state)))
    restored.apply(JobStarted(time=2.0, job="a", gpus=2, pool=where))
    restored.apply(JobEnded(time=3.0, job="a"))
    restored.check()
    assert restored.view.free_gpus == 6
    pools = {name: (pool.total, pool.free) for name, pool in restored.view.pools.items()}
    assert pools == ({"": (6, 6)} if gpus == 6 else {"h100": (4, 4), "a100": (2, 2)})


def test_an_unusable_snapshot_costs_time_only(make_platform, tmp_path):
    platform, settings = busy_log(make_platform, "fifo")
    expected = whole(fold(platform.store, make_policy(settings), None))
    snapshots = Snapshots(tmp_path, "x")
    path = snapshots.write(fold(platform.store, make_policy(settings), None))
    assert Snapshots(tmp_path, "other settings").newest() is None
    whole_file = path.read_bytes()
    for cut in range(0, len(whole_file), max(1, len(whole_file) // 50)):
        path.write_bytes(whole_file[:cut])
        assert whole(fold(platform.store, make_policy(settings), snapshots)) == expected
    path.write_bytes(whole_file)
    shorter = make_platform()
    shorter.store._rows = platform.store._rows[:5]
    assert fold(shorter.store, make_policy(settings), snapshots).recovered.sequence == 5


def test_only_the_newest_two_are_kept(make_platform, tmp_path):
    platform, settings = busy_log(make_platform, "fifo")
    snapshots = Snapshots(tmp_path, "x")
    for cut in (3, 5, 8):
        part = make_platform()
        part.store._rows = platform.store._rows[:cut]
        snapshots.write(fold(part.store, make_policy(settings), None))
    assert snapshots.newest().recovered.sequence == 8
    assert len(list(tmp_path.iterdir())) == 2


def test_the_fingerprint_follows_the_settings():
    assert fingerprint("a") == fingerprint("a")
    assert fingerprint("a") != fingerprint("b")


class Opened:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self):
        settings = Settings()
        store = SqliteStore(self.folder / "log.sqlite")
        return store, make_policy(settings), Snapshots(self.folder / "snapshots", "x")


def test_snapshots_are_made_in_another_process(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "log.sqlite")
    store.append(story())
    monkeypatch.setattr(snapshotter, "_LOOK_EVERY_S", 0.01)
    keeper = SnapshotKeeper(Opened(tmp_path), store.last_sequence, since=0, every=5)
    keeper.start()
    eventually(lambda: Snapshots(tmp_path / "snapshots", "x").newest() is not None, 120.0)
    keeper.close()
    assert Snapshots(tmp_path / "snapshots", "x").newest().recovered.sequence == 10


def test_a_long_replay_says_why_and_how_far_it_has_got(
    make_platform, tmp_path, monkeypatch, caplog
):
    platform, settings = busy_log(make_platform, "fifo")
    entries = platform.store.last_sequence()
    monkeypatch.setattr(snapshot, "TOLD_FROM", 10)
    monkeypatch.setattr(snapshot, "TOLD_EVERY", 50)
    snapshots = Snapshots(tmp_path, "x")
    folded = fold(platform.store, make_policy(settings), snapshots)
    assert folded.since == 0
    assert f"replaying {entries} entries of the log (no snapshot by these" in caplog.text
    assert f"replayed 50 of {entries} entries" in caplog.text
    snapshots.write(folded)
    caplog.clear()
    assert fold(platform.store, make_policy(settings), snapshots).since == entries
    assert not caplog.text


def test_new_settings_get_a_snapshot_of_their_own_soon(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshotter, "_LOOK_EVERY_S", 0.01)
    store = SqliteStore(tmp_path / "log.sqlite")
    store.append(
        [Entry(sequence=n, event=CapacityChanged(time=float(n), gpus=n)) for n in range(1, 11)]
    )
    opened = Opened(tmp_path)
    keeper = SnapshotKeeper(opened, store.last_sequence, since=10, every=5)
    keeper.start()
    try:
        keeper.use(opened)
        eventually(lambda: list((tmp_path / "snapshots").glob("[0-9]*.json")), 120.0)
    finally:
        keeper.close()
