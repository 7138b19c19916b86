"""Which reader a source needs, seen from its content; and how one bad file spares the others."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from evalstop.core.errors import MissingExtraError, ReadError
from evalstop.traces import example, lm_eval, mlflow
from evalstop.traces.checkpoint_scores import curves_of_files
from evalstop.traces.inspect_log import is_inspect_log, readings_of_log
from evalstop.traces.jsonl import read_jsonl
from evalstop.traces.series import Curve, Loaded
from evalstop.traces.spooled import STDIN, read_spooled
from evalstop.traces.tables import read_csv, read_parquet
from evalstop.traces.tensorboard import is_event_file, read_event_folder
from evalstop.traces.text_files import opening_of, packed, two_byte_text
from evalstop.traces.trainer_state import read_trainer_state
from evalstop.traces.wandb_offline import MAGIC, read_wandb_offline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["read_source"]

_STATE = "trainer_state.json"
_CHECKPOINT = "checkpoint-"
_TABLES = (".csv", ".parquet", ".jsonl")
_PACKED = ".gz"
_OFFLINE = ".wandb"
_PARQUET_MAGIC = b"PAR1"
_LIST = re.compile(rb"\[\s*[\[{\]]")


def read_source(source: str | Path, metric: str | None = None) -> Loaded:
    """Read a file (``-``: the standard input), a folder, ``mlflow:URI`` or the built-in runs.

    Args:
        source: what to read.
        metric: the metric that is wanted, for tables with one column a metric.

    Returns:
        The curves, and an error for each file that could not be read.

    Raises:
        ReadError: nothing is there, or nothing of it could be read.
        MissingExtraError: the format needs an optional dependency.
    """
    if isinstance(source, str) and source.startswith(mlflow.PREFIX):
        return mlflow.read_mlflow(source, metric)
    if isinstance(source, str) and source.startswith(example.PREFIX):
        return example.read_example(source)
    if str(source) == STDIN:
        return read_spooled(source, partial(_read_file, metric=metric))
    if not str(source):
        message = "expected a file or a folder, but the name is empty (an unset variable?)"
        msg = "''"
        raise ReadError(msg, message)
    try:
        return _read_path(Path(source), metric)
    except OSError as error:  # a name too long, a folder above that is closed, a disk that fails
        raise ReadError(str(source), f"cannot be read: {error.strerror}") from error


def _read_path(path: Path, metric: str | None) -> Loaded:
    if path.is_dir():
        return _read_folder(path, metric)
    if not path.exists():
        raise _nowhere(path)
    if not path.is_file() or packed(opening_of(path)):
        return read_spooled(path, partial(_read_file, metric=metric))
    return _read_file(path, metric)


def _nowhere(path: Path) -> ReadError:
    leads = "a symbolic link that leads nowhere" if path.is_symlink() else ""
    return ReadError(str(path), leads or "there is no such file or folder")


def _read_file(path: Path, metric: str | None) -> Loaded:
    start = opening_of(path)
    if not start.strip():
        raise ReadError(str(path), "the file is empty")
    if start.startswith(_PARQUET_MAGIC):
        return read_parquet(path, metric)
    if is_inspect_log(path):
        return _whole(curves_of_files([path], path, readings_of_log))
    if start.startswith(MAGIC):
        return read_wandb_offline([path], metric)
    if is_event_file(path):
        return read_event_folder(path, metric)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        return _read_json(path, text, metric)
    if _LIST.match(text):
        message = "a JSON list: expected one object a line (JSONL), as `jq -c '.[]'` writes them"
        raise ReadError(str(path), message)
    if b"\x00" in start:
        message = two_byte_text(start) or (
            "not a format evalstop knows: expected trainer_state.json, CSV, Parquet, JSONL, "
            "TensorBoard events or results of lm-evaluation-harness"
        )
        raise ReadError(str(path), message)
    return read_csv(path, metric)


def _read_json(path: Path, text: bytes, metric: str | None) -> Loaded:
    if path.suffix == ".jsonl":
        return read_jsonl(path, metric)
    if lm_eval.is_results(path):
        return _whole(lm_eval.read_results([path], path))
    if path.suffix == ".json" or b"\n" not in text or b'"log_history"' in text:
        return read_trainer_state(path, metric)
    first = text.split(b"\n", 1)[0].rstrip()
    return read_jsonl(path, metric) if first.endswith(b"}") else read_trainer_state(path, metric)


def _whole(loaded: Loaded) -> Loaded:
    """Return what was read, or raise why it gave nothing."""
    if loaded.errors and not loaded.curves:
        raise loaded.errors[0]
    return loaded


class _Part(NamedTuple):
    """A run of a folder: ways to read it, the first that works counts; and its name, if known."""

    ways: Sequence[Callable[[], Loaded]]
    name: str | None = None


def _read_folder(root: Path, metric: str | None) -> Loaded:
    if not os.access(root, os.R_OK | os.X_OK):
        raise _forbidden(root)
    files, errors = _listed(root)
    curves: list[Curve] = []
    missing: MissingExtraError | None = None
    for part in _parts(root, files, metric):
        for way in part.ways:
            try:
                loaded = way()
            except ReadError as error:
                errors.append(error)
                continue
            except MissingExtraError as error:
                missing = error
                errors.append(ReadError(str(root), str(error)))
                break
            except OSError as error:  # gone, or forbidden, since it was seen
                errors.append(ReadError(error.filename or str(root), f"cannot be read: {error}"))
                continue
            errors += loaded.errors
            curves += [replace(c, trace_id=part.name or c.trace_id) for c in loaded.curves]
            break
    if not curves:
        raise missing or (errors[0] if errors else _nothing_found(root, files))
    return Loaded(curves, errors)


def _listed(root: Path) -> tuple[list[Path], list[ReadError]]:
    """Return the files of a folder that may be read, and errors for runs that may not."""
    files: list[Path] = []
    errors: list[ReadError] = []
    for path in sorted(root.rglob("*")):
        if path.is_dir():
            if not os.access(path, os.R_OK | os.X_OK):
                errors.append(_forbidden(path))
        elif os.access(path, os.R_OK):
            files += [path] if path.is_file() else []
        elif _is_named(path):
            errors.append(_forbidden(path) if path.exists() else _nowhere(path))
    return files, errors


def _parts(root: Path, files: Sequence[Path], metric: str | None) -> Iterator[_Part]:
    for run, states in _runs_of_states(files):
        # Newest first: an older one stands in for one that is cut short.
        yield _Part([partial(read_trainer_state, s, metric) for s in states], _name(root, run))
    for folder in dict.fromkeys(path.parent for path in files if is_event_file(path)):
        yield _Part([partial(read_event_folder, folder, metric)], _name(root, folder))
    offline: dict[str, list[Path]] = {}
    for path in files:
        if path.suffix == _OFFLINE:
            offline.setdefault(path.name, []).append(path)
    for parts in offline.values():  # a resumed run has a folder each time, and one name
        yield _Part([partial(read_wandb_offline, parts, metric)])
    results = [path for path in files if lm_eval.is_results(path)]
    evaluated = {path.parent for path in results}
    for path in files:
        if _is_table(path) and path.parent not in evaluated:
            yield _Part([partial(_read_path, path, metric)])
    if results:
        yield _Part([partial(lm_eval.read_results, results, root)])
    if logs := [path for path in files if is_inspect_log(path)]:
        yield _Part([partial(curves_of_files, logs, root, readings_of_log)])


def _runs_of_states(files: Iterable[Path]) -> list[tuple[Path, list[Path]]]:
    """Return runs with their states, newest first: the run's own, then its checkpoints' by step."""
    runs: dict[Path, list[tuple[float, Path]]] = {}
    for path in files:
        if path.name != _STATE:
            continue
        folder = path.parent
        step = folder.name.removeprefix(_CHECKPOINT)
        if folder.name.startswith(_CHECKPOINT) and step.isdigit():
            runs.setdefault(folder.parent, []).append((float(step), path))
        else:
            runs.setdefault(folder, []).append((float("inf"), path))
    return [(run, [path for _, path in sorted(states)[::-1]]) for run, states in runs.items()]


def _name(root: Path, run: Path) -> str:
    """Return a run's name within ``root``: its path, or the folder's own name."""
    return root.absolute().name if run == root else run.relative_to(root).as_posix()


def _is_table(path: Path) -> bool:
    return Path(path.stem if path.suffix == _PACKED else path.name).suffix in _TABLES


def _is_named(path: Path) -> bool:
    """Return whether a file has a name that readers look for; other files may be as they are."""
    name = path.name
    return (
        name == _STATE
        or path.suffix in {_OFFLINE, ".eval"}
        or _is_table(path)
        or "tfevents" in name
        or lm_eval.is_results(path)
    )


def _forbidden(path: Path) -> ReadError:
    return ReadError(str(path), "cannot be read: Permission denied")


def _nothing_found(root: Path, files: Sequence[Path]) -> ReadError:
    message = (
        f"no runs found among {len(files)} files: expected {_STATE}, *.csv, *.parquet, *.jsonl, "
        "TensorBoard event files, *.wandb, results_*.json of lm-evaluation-harness or *.eval of "
        "inspect_ai"
    )
    return ReadError(str(root), message)
