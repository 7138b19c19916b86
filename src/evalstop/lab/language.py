"""A toy language with a gold reward that anyone can read.

A prompt names a topic by three of its words; a completion is up to twelve words. The gold reward
is the mean of three parts, each in 0-1:

- *relevance*: words on the prompt's topic, saturating at four, less a twelfth for each word of
  another topic;
- *grammar*: the share of the eleven word pairs that follow the grammar
  (determiner, adjective, noun, verb, adverb, conjunction);
- *variety*: distinct words over twelve.

It is learnable in part only from samples of an untrained policy: which single words are liked is
quickly learned from few comparisons, how they must be combined is not. That is where a proxy
goes wrong once a policy leaves the distribution it was fitted on (Gao, Schulman, Hilton 2023,
"Scaling laws for reward model overoptimization").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "COMPLETION_TOKENS",
    "END",
    "PAD",
    "PROMPT_TOKENS",
    "VOCABULARY",
    "corpus",
    "gold_reward",
    "prompts",
]

TOPICS: dict[str, tuple[str, ...]] = {
    "sea": ("ship", "wave", "sails", "drifts", "blue", "deep"),
    "farm": ("cow", "barn", "grazes", "grows", "green", "muddy"),
    "city": ("tram", "tower", "rings", "shines", "grey", "loud"),
    "sky": ("cloud", "star", "floats", "glows", "pale", "high"),
}
"""Each topic: two nouns, two verbs, two adjectives."""

FUNCTION_WORDS: dict[str, tuple[str, ...]] = {
    "determiner": ("the", "a"),
    "adverb": ("softly", "slowly"),
    "conjunction": ("and", "then"),
}

SPECIAL = ("<pad>", "<eos>", ":")
PAD, END, COLON = 0, 1, 2
PROMPT_TOKENS = 4
COMPLETION_TOKENS = 12
_RELEVANT_ENOUGH = 4

_CLASSES = ("special", "noun", "verb", "adjective", "determiner", "adverb", "conjunction")
_NOUN, _VERB, _ADJECTIVE, _DETERMINER, _ADVERB, _CONJUNCTION = range(1, 7)
_FOLLOWS = {
    _DETERMINER: (_ADJECTIVE, _NOUN),
    _ADJECTIVE: (_NOUN,),
    _NOUN: (_VERB,),
    _VERB: (_ADVERB, _CONJUNCTION),
    _ADVERB: (_CONJUNCTION,),
    _CONJUNCTION: (_DETERMINER,),
}
"""The grammar: which class of word may follow which."""


def _lexicon() -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
    words = list(SPECIAL)
    classes = [0] * len(SPECIAL)
    topics = [-1] * len(SPECIAL)
    for topic, members in enumerate(TOPICS.values()):
        words += members
        classes += [_NOUN, _NOUN, _VERB, _VERB, _ADJECTIVE, _ADJECTIVE]
        topics += [topic] * len(members)
    for name, members in FUNCTION_WORDS.items():
        words += members
        classes += [_CLASSES.index(name)] * len(members)
        topics += [-1] * len(members)
    return tuple(words), np.array(classes), np.array(topics)


VOCABULARY, WORD_CLASS, WORD_TOPIC = _lexicon()
_ALLOWED = np.zeros((len(_CLASSES), len(_CLASSES)), dtype=bool)
for _first, _seconds in _FOLLOWS.items():
    _ALLOWED[_first, list(_seconds)] = True


def prompts(count: int, *, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return ``count`` prompts, shape (count, 4): three words of one topic and a colon."""
    topics = generator.integers(len(TOPICS), size=count)
    words = np.stack([np.flatnonzero(topic == WORD_TOPIC) for topic in range(len(TOPICS))])
    picks = np.argsort(generator.random((count, words.shape[1])), axis=1)[:, : PROMPT_TOKENS - 1]
    colon = np.full((count, 1), COLON)
    return np.concatenate([words[topics[:, None], picks], colon], axis=1)


def corpus(
    prompt_ids: NDArray[np.int64],
    *,
    on_topic: float,
    in_grammar: float,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Return mediocre completions, shape (n, 12): what the start policy is trained on.

    Args:
        prompt_ids: prompts, shape (n, 4).
        on_topic: chance that a content word is drawn from the prompt's topic.
        in_grammar: chance that a word's class follows the grammar.
        generator: source of randomness.
    """
    count = len(prompt_ids)
    topic = WORD_TOPIC[prompt_ids[:, 0]]
    text = np.zeros((count, COMPLETION_TOKENS), dtype=np.int64)
    previous = np.full(count, _CONJUNCTION)
    everything = np.arange(len(SPECIAL), len(VOCABULARY))
    for place in range(COMPLETION_TOKENS):
        for row in range(count):
            candidates = everything
            if generator.random() < in_grammar:
                candidates = candidates[_ALLOWED[previous[row], WORD_CLASS[candidates]]]
            if generator.random() < on_topic:
                topics = WORD_TOPIC[candidates]
                candidates = candidates[(topics == topic[row]) | (topics < 0)]
            text[row, place] = generator.choice(candidates)
        previous = WORD_CLASS[text[:, place]]
    return text


def gold_reward(
    prompt_ids: NDArray[np.int64], completion_ids: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the true quality of each completion, in 0-1, shape (n,).

    Args:
        prompt_ids: prompts, shape (n, 4).
        completion_ids: completions padded with `PAD` to shape (n, 12); whatever follows the
            first `END` does not count.
    """
    ended = np.cumsum(completion_ids <= END, axis=1) > 0
    ids = np.where(ended, PAD, completion_ids)
    topic = WORD_TOPIC[prompt_ids[:, 0]][:, None]
    topics = WORD_TOPIC[ids]
    on_topic = (topics == topic).sum(axis=1)
    off_topic = ((topics >= 0) & (topics != topic)).sum(axis=1)
    relevance = np.clip(
        np.minimum(on_topic, _RELEVANT_ENOUGH) / _RELEVANT_ENOUGH - off_topic / COMPLETION_TOKENS,
        0.0,
        1.0,
    )
    classes = WORD_CLASS[ids]
    grammar = _ALLOWED[classes[:, :-1], classes[:, 1:]].mean(axis=1)
    seen = np.zeros((len(ids), len(VOCABULARY)), dtype=bool)
    np.put_along_axis(seen, ids, values=True, axis=1)
    variety = seen[:, len(SPECIAL) :].sum(axis=1) / COMPLETION_TOKENS
    quality: NDArray[np.float64] = (relevance + grammar + variety) / 3.0
    return quality
