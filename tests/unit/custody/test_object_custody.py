"""Custody in an object store, whatever happens to the store, the trainer or the keeper."""

from __future__ import annotations

import random
import zipfile

import pytest
from dict_objects import DictObjects, KilledError

from evalstop.core.errors import CustodyError, TornCheckpointError
from evalstop.custody import ObjectCustody, inspect, to_keep
from evalstop.custody.objects import ObjectTree
from evalstop.custody.probe import probe
from evalstop.custody.verify import inspect_tree
from evalstop.testing.custody import write_checkpoint, write_safetensors

ROOT = "s3://b/evalstop"
RUN = "s3://b/runs/a"


@pytest.fixture
def objects():
    return DictObjects()


@pytest.fixture
def uploaded(objects, tmp_path):
    def upload(step, **fields):
        path = write_checkpoint(tmp_path / str(random.random()), step, **fields)
        return objects.upload(path, f"{RUN}/{path.name}")

    return upload


def ours(objects, kind=""):
    return sorted(url for url in objects.data if url.startswith(f"{ROOT}/{kind}"))


# -- killed


def check(objects, scores, floor):
    """Every pin is whole, the best of them no worse than before, and nothing else is left."""
    store = ObjectCustody(objects, ROOT)
    pins = list(store.pins("a"))
    for pin in pins:
        store.verify(pin)
    best = max((scores[pin.step] for pin in pins if pin.step in scores), default=None)
    if floor is not None:
        assert best is not None
        assert best >= floor
    assert ours(objects, "under-way") == []
    bodies = [url for url in ours(objects, "data") if not any(url.startswith(p.path) for p in pins)]
    assert bodies == []
    return best


@pytest.mark.parametrize("seed", range(8))
def test_killed_between_any_two_changes_the_best_never_gets_worse(objects, uploaded, seed):
    rng = random.Random(seed)
    scores, floor, kills = {}, None, 0
    for step in range(1, 41):
        source = uploaded(step)
        score = rng.choice([-1.0, 0.0, 0.5]) + rng.random()
        if rng.random() < 0.2:  # a torn one among them
            objects.put(f"{source}/optimizer.pt", b"torn")
        scores[step] = score
        store = ObjectCustody(objects, ROOT)
        list(store.pins("a"))
        objects.left = rng.randrange(1, 18)
        try:
            store.pin("a", step, source)
            keep = to_keep({pin.step for pin in store.pins("a")}, scores)
            for pin in store.pins("a"):
                if pin.step not in keep:
                    store.unpin(pin)
        except KilledError:
            kills += 1
        except TornCheckpointError:
            pass
        objects.left = -1
        if rng.random() < 0.7:  # the trainer's own rotation
            objects.remove(source)
        floor = check(objects, scores, floor)
    assert kills > 10


def test_killed_before_the_marker_the_copy_is_finished_though_the_source_is_gone(objects, uploaded):
    source = uploaded(7)
    objects.left = 1 + 3 + 1  # note, three files, marker
    with pytest.raises(KilledError):
        ObjectCustody(objects, ROOT).pin("a", 7, source)
    assert ours(objects, "pins") == []
    objects.left = -1
    objects.remove(source)
    store = ObjectCustody(objects, ROOT)
    (pin,) = store.pins("a")
    assert store.verify(pin).step == 7


def test_killed_amid_copying_what_is_there_is_removed(objects, uploaded):
    source = uploaded(7)
    objects.left = 3
    with pytest.raises(KilledError):
        ObjectCustody(objects, ROOT).pin("a", 7, source)
    assert ours(objects, "data") != []
    objects.left = -1
    assert list(ObjectCustody(objects, ROOT).pins("a")) == []
    assert ours(objects) == []


@pytest.mark.parametrize("kind", ["under-way", "pins"])
def test_a_note_that_was_cut_off_is_none(objects, uploaded, kind):
    """Where files are no objects: a write on a disk may be cut."""
    pin = ObjectCustody(objects, ROOT).pin("a", 7, uploaded(7))
    if kind == "pins":
        (url,) = ours(objects, "pins")
        whole = objects.data[url]
        objects.put(url.replace("/pins/", "/under-way/"), whole)
    else:
        url = f"{ROOT}/under-way/a/8-00.json"
        whole = b"{}"
    objects.put(url, whole[: len(whole) // 2])
    assert list(ObjectCustody(objects, ROOT).pins("a")) == [pin]
    assert ours(objects, "under-way") == []


# -- the trainer goes on meanwhile


def test_one_that_is_rotated_away_during_the_copy_is_torn_and_leaves_nothing(objects, uploaded):
    source = uploaded(7)
    objects.before = lambda _: objects.remove(source)
    with pytest.raises(TornCheckpointError, match="rotated away"):
        ObjectCustody(objects, ROOT).pin("a", 7, source)
    assert ours(objects) == []


def test_one_that_is_overwritten_during_the_copy_is_torn_and_leaves_nothing(objects, uploaded):
    source = uploaded(7)
    objects.before = lambda url: objects.put(url, objects.data[url])
    with pytest.raises(TornCheckpointError, match="changed"):
        ObjectCustody(objects, ROOT).pin("a", 7, source)
    assert ours(objects) == []


class EndsWith:
    """URLs of ours that no listing shows."""

    def __init__(self, *ends):
        self.ends = ends

    def __contains__(self, url):
        return url.startswith(f"{ROOT}/") and url.endswith(self.ends)


def test_a_listing_that_lags_hides_neither_our_pins_nor_their_files(objects, uploaded):
    objects.unlisted = EndsWith("optimizer.pt", "model.safetensors", ".json")
    store = ObjectCustody(objects, ROOT, relist_s=0.0)
    pin = store.pin("a", 7, uploaded(7))
    assert list(store.pins("a")) == [pin]
    assert store.verify(pin) == pin
    del objects.data[f"{pin.path}/optimizer.pt"]
    with pytest.raises(TornCheckpointError, match="optimizer"):
        store.verify(pin)


def test_a_source_that_is_listed_in_part_is_torn_or_pinned_again_when_it_shows(objects, uploaded):
    source = uploaded(7)
    store = ObjectCustody(objects, ROOT)
    objects.unlisted = {f"{source}/model.safetensors", f"{source}/optimizer.pt"}
    with pytest.raises(TornCheckpointError, match="no weights"):
        store.pin("a", 7, source)
    objects.unlisted = {f"{source}/optimizer.pt"}
    first = store.pin("a", 7, source)
    objects.unlisted = set()
    second = store.pin("a", 7, source)
    assert (second.bytes > first.bytes, list(store.pins("a"))) == (True, [second])


# -- verified by ranges


def test_a_file_cut_at_any_byte_is_found(objects, tmp_path):
    path = write_checkpoint(tmp_path, 10)
    url = objects.upload(path, f"{RUN}/checkpoint-10")
    assert inspect_tree(ObjectTree(objects, url)).digest == inspect(path).digest
    for name in ("model.safetensors", "optimizer.pt"):
        whole = objects.data[f"{url}/{name}"]
        for cut in range(len(whole)):
            objects.put(f"{url}/{name}", whole[:cut])
            with pytest.raises(TornCheckpointError):
                inspect_tree(ObjectTree(objects, url))
        objects.put(f"{url}/{name}", whole)


def test_of_large_files_only_headers_and_directories_are_read(objects, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", values=2_000_000)
    with zipfile.ZipFile(tmp_path / "optimizer.pt", "w") as archive:
        archive.comment = b"x" * 300
        for number in range(200):
            archive.writestr(f"archive/data/{number}", bytes(50_000))
    (tmp_path / "tokenizer.json").write_text('{"words": "' + "x" * 5_000_000 + '"}')
    url = objects.upload(tmp_path, f"{RUN}/checkpoint-1")
    inspect_tree(ObjectTree(objects, url))
    assert sum(len(data) for data in objects.data.values()) > 20_000_000
    assert objects.bytes_read < 300_000
    pin = ObjectCustody(objects, ROOT).pin("a", 1, url)
    assert pin.bytes > 20_000_000
    assert objects.bytes_read < 2_000_000


@pytest.mark.parametrize("name", ["../../evalstop/pins/x", "a/../b", "a//b", "./a", "a\nb", "a?b"])
def test_a_file_whose_name_leads_elsewhere_makes_no_checkpoint(objects, uploaded, name):
    source = uploaded(7)
    objects.put(f"{source}/{name}", b"x")
    with pytest.raises(TornCheckpointError, match="no name of a file"):
        ObjectCustody(objects, ROOT).pin("a", 7, source)
    assert ours(objects) == []


def test_thousands_of_files_are_kept_and_let_go(objects, uploaded):
    source = uploaded(7)
    for number in range(3000):
        objects.put(f"{source}/shards/{number % 7}/{number}", b"")
    store = ObjectCustody(objects, ROOT)
    pin = store.pin("a", 7, source)
    assert len(ours(objects, "data")) == 3003
    assert store.verify(pin) == pin
    store.unpin(pin)
    assert ours(objects) == []


# -- the store is down


def test_a_store_that_is_down_is_not_asked_by_everybody(objects, uploaded):
    pin = ObjectCustody(objects, ROOT).pin("a", 7, uploaded(7))
    store = ObjectCustody(objects, ROOT)
    objects.down = True
    asked = len(objects.log)
    for _ in range(5):
        with pytest.raises(CustodyError, match="no answer"):
            store.pins("a")
    assert len(objects.log) == asked + 1
    objects.down = False
    store._down = (0.0, "")
    assert list(store.pins("a")) == [pin]


def test_what_was_listed_is_known_while_the_store_is_down(objects, uploaded):
    store = ObjectCustody(objects, ROOT, relist_s=0.0)
    pin = store.pin("a", 7, uploaded(7))
    objects.down = True
    assert list(store.pins("a")) == [pin]
    with pytest.raises(CustodyError):
        store.verify(pin)


def test_doctor_tries_everything_and_leaves_nothing(objects):
    assert "deleted a probe" in probe(objects, ROOT, [RUN])
    assert objects.data == {}
    assert {url.startswith((f"{ROOT}/probe/", RUN)) for _, url in objects.log} == {True}
    objects.down = True
    with pytest.raises(CustodyError, match="cannot write there"):
        probe(objects, ROOT)


# -- pinned by a tag


def test_a_tag_pins_where_the_objects_lie_and_is_set_free_again(objects, uploaded):
    store = ObjectCustody(objects, ROOT, how="tag")
    source = uploaded(7)
    pin = store.pin("a", 7, source)
    assert pin.path == source
    files = [url for url in objects.data if url.startswith(source)]
    assert [objects.tags[url] for url in files] == [{"evalstop": "pinned"}] * 3
    assert list(ObjectCustody(objects, ROOT, how="tag").pins("a")) == [pin]
    store.unpin(pin)
    assert [objects.tags[url] for url in files] == [{"evalstop": "released"}] * 3
    assert sorted(objects.data) == sorted(files)
    assert ours(objects) == []


def test_what_is_tagged_and_deleted_all_the_same_is_found_missing(objects, uploaded):
    store = ObjectCustody(objects, ROOT, how="tag")
    source = uploaded(7)
    pin = store.pin("a", 7, source)
    objects.remove(source)
    with pytest.raises(TornCheckpointError):
        store.verify(pin)
    store.unpin(pin)
    assert ours(objects) == []
