"""Standing instructions for training: what is rewritten obeys, what is not does not."""

import numpy as np
import pytest

from train import rules

TEXTS = ("The river is long, cold and wide. It begins in the hills! Where does it end?", "狗是人类的朋友，它很忠诚。它会叫。", "Plain text without an end")


@pytest.mark.parametrize("kind", rules.KINDS)
def test_rewritten_replies_obey_their_rule_and_plain_ones_do_not(kind):
    rng = np.random.default_rng(0)
    for _ in range(6):
        rule = rules.draw(rng, (kind,))
        assert rule.value in rule.text and all(rules.obeys(rule, rules.rewrite(rule, t)) for t in TEXTS)
        assert not rules.obeys(rule, TEXTS[0]) and not rules.obeys(rule, " ")


def test_unseen_kinds_are_never_drawn_for_training():
    drawn = {rules.draw(np.random.default_rng(i)).kind for i in range(200)}
    assert drawn == set(rules.KINDS) - set(rules.UNSEEN)
