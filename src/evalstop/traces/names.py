"""Names of metrics: one metric has several spellings, and a name is a hint, never a fact.

The same number is ``eval_gsm8k/pass@1`` for the trainer, ``eval/gsm8k/pass@1`` in TensorBoard and
``eval_gsm8k/pass_at_1`` in MLflow, depending on which sink wrote it (transformers'
``rewrite_logs``, verl's MLflow adapter). OpenRLHF's own ``eval_gsm8k_pass1`` is logged as
``eval/eval_gsm8k_pass1``. Any of them finds any other.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["canonical", "find", "is_trained_reward", "means_loss", "suggested", "unknown_metric"]

_PREFIXES = ("eval_", "val_", "test_", "validation_")
_LOWER_IS_BETTER = re.compile(
    r"(^|_)(loss|perplexity|ppl|nll|wer|cer|ter|mse|rmse|mae|bpb|error|err|toxicity|kl)(_|$)"
)
_HIGHER_IS_BETTER = re.compile(
    r"(^|_)(acc|accuracy|accuracies|f1|em|exact_match|bleu|rouge\w*|meteor|chrf\w*|reward|rewards"
    r"|score|pass_at_\d+|win_rate|winrate|auc|precision|recall|success\w*|map|ndcg\w*|return)(_|$)"
)
_LOSS = re.compile(r"(^|_)(loss|perplexity|ppl|nll|mse|rmse|mae|bpb|kl)(_|$)")
_REWARD = re.compile(r"(^|_)(rewards?)(_|$)")
_MOST_LISTED = 20
_ALIKE, _LEAST_PART, _PART_COUNTS = 0.5, 3, 0.75
"""From which ratio of equal letters names are alike; what being a part of one counts for."""


def canonical(name: str) -> str:
    """Return the spelling all sinks share: lower case, ``_`` for ``/`` and ``-``, ``_at_``."""
    text = name.strip().lower().replace("@", "_at_")
    return re.sub(r"[/\-. ,]+", "_", text).strip("_")


def find(wanted: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``wanted`` means, or None.

    The exact spelling wins; then the same canonical spelling; then the same without a prefix
    ``eval_`` (``val_``, ``test_``), if only one name is left.
    """
    names = list(dict.fromkeys(known))
    if wanted in names:
        return wanted
    target = canonical(wanted)
    same = [name for name in names if canonical(name) == target]
    if same:
        return same[0]
    bare = [name for name in names if _bare(canonical(name)) == _bare(target)]
    return bare[0] if len(bare) == 1 else None


def unknown_metric(wanted: str, known: Iterable[str]) -> str:
    """Return a sentence that names the metrics there are, and the nearest to ``wanted``."""
    names = sorted(set(known))
    near = _nearest(canonical(wanted), names)
    listed = ", ".join(names[:_MOST_LISTED])
    if len(names) > _MOST_LISTED:
        listed += f" and {len(names) - _MOST_LISTED} more"
    question = f" Did you mean {near!r}?" if near else ""
    return f"no metric {wanted!r}; there are: {listed}.{question}"


def suggested(name: str) -> str | None:
    """Return the direction that a name suggests: a hint for warnings, never used to decide."""
    text = canonical(name)
    if _LOWER_IS_BETTER.search(text):
        return "min"
    return "max" if _HIGHER_IS_BETTER.search(text) else None


def means_loss(name: str) -> bool:
    """Return whether a name says that its values are losses, which are no shares of items."""
    return _LOSS.search(canonical(name)) is not None


def is_trained_reward(name: str) -> bool:
    """Return whether a name is one that trainers give to the reward they optimise (R29).

    TRL: ``reward``, ``rewards/NAME/mean``, ``eval_reward``, ``eval_rewards/margins``; verl:
    ``critic/rewards/mean``, ``critic/score/mean``. verl's ``val-core/DATA/reward/mean@1`` is an
    evaluation on held-out tasks, and its own word for a score.
    """
    text = canonical(name)
    if text.startswith(("val_core", "val_aux")):
        return False
    return _REWARD.search(text) is not None or text.startswith("critic_score")


def _nearest(target: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like a spelling: with its prefix, without, or as a part."""
    scores = {}
    for name in names:
        spelling = canonical(name)
        pairs = ((target, spelling), (_bare(target), _bare(spelling)))
        alike = max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
        part = len(target) >= _LEAST_PART and target in spelling
        scores[name] = max(alike, _PART_COUNTS * part)
    best = max(scores, key=lambda name: scores[name], default=None)
    return best if best is not None and scores[best] >= _ALIKE else None


def _bare(spelling: str) -> str:
    for prefix in _PREFIXES:
        if spelling.startswith(prefix):
            return _bare(spelling[len(prefix) :])
    return spelling
