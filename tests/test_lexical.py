"""BM25 over exchanges in any script."""

import numpy as np

from infer.lexical import Index, words


def test_words_of_scripts_with_and_without_blanks():
    assert words("The cat's 3 mats, OK?") == ["the", "cat", "s", "3", "mats", "ok"]
    assert words("我的猫叫小花") == ["我的", "的猫", "猫叫", "叫小", "小花"]
    assert words("猫 and 犬") == ["猫", "and", "犬"] and words("\u200b …") == []


def test_scores_rank_and_stay_zero_where_nothing_matches():
    index = Index()
    assert index.scores(["a"]).shape == (0,)
    index.change([[], words("red apple pie"), words("green apple"), words("blue sky")])
    scores = index.scores(words("red apple"))
    assert scores[1] > scores[2] > 0 and scores[0] == scores[3] == 0
    assert not index.scores(words("zebra")).any() and not index.scores([]).any()
    index.change([[]])
    assert index.scores(["red"]).tolist() == [0.0] and scores.dtype == np.float32
