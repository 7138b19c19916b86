"""The gold reward, reckoned by hand."""

from __future__ import annotations

import numpy as np
import pytest

from evalstop.lab.language import (
    COMPLETION_TOKENS,
    END,
    PAD,
    VOCABULARY,
    WORD_TOPIC,
    corpus,
    gold_reward,
    prompts,
)


def ids(words: str) -> list[int]:
    return [VOCABULARY.index(word) for word in words.split()]


SEA = ids("ship wave blue :")
GOOD = "the blue ship sails softly and a deep wave drifts slowly then"
# Parts of the reward in their own units: relevant words, bad words of other topics, lawful pairs
# of eleven, distinct words of twelve.
CASES = {
    "good text": (GOOD, 4 / 4, 11, 12),
    "one word over and over": ("ship " * 12, 4 / 4, 0, 1),
    "another topic": ("the grey tram rings softly and a loud tower shines slowly then", 0, 11, 12),
    "two on topic, two off": ("a ship sails then a tram rings then a a a a", 2 / 4 - 2 / 12, 8, 6),
}


@pytest.mark.parametrize(("text", "relevance", "pairs", "distinct"), CASES.values(), ids=CASES)
def test_the_reward_is_the_mean_of_its_three_parts(text, relevance, pairs, distinct):
    [score] = gold_reward(np.array([SEA]), np.array([ids(text)]))
    assert score == pytest.approx((relevance + pairs / 11 + distinct / 12) / 3)


def test_what_follows_the_end_does_not_count():
    text = ids(GOOD)
    cut = [*text[:3], END, *text[4:]]
    padded = [*text[:3], *[PAD] * 9]
    one, other = gold_reward(np.array([SEA, SEA]), np.array([cut, padded]))
    assert one == other == pytest.approx((2 / 4 + 2 / 11 + 3 / 12) / 3)


def test_an_empty_completion_is_worth_nothing():
    assert gold_reward(np.array([SEA]), np.full((1, COMPLETION_TOKENS), PAD)) == 0.0


def test_prompts_name_one_topic_by_three_words():
    asked = prompts(200, generator=np.random.default_rng(0))
    topics = WORD_TOPIC[asked[:, :3]]
    assert (topics == topics[:, :1]).all()
    assert (topics >= 0).all()
    assert all(len(set(row)) == 3 for row in asked[:, :3].tolist())


def test_better_corpora_have_higher_rewards():
    generator = np.random.default_rng(0)
    asked = prompts(300, generator=generator)
    means = [
        gold_reward(asked, corpus(asked, on_topic=q, in_grammar=q, generator=generator)).mean()
        for q in (0.0, 0.5, 1.0)
    ]
    assert means[0] < 0.45 < means[1] < 0.75
    assert means[2] > 0.85
