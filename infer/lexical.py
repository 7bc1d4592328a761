"""BM25 over stored exchanges: how a chat recalls while its compressor is untrained."""

import numpy as np
import regex

# Han, kana and Hangul have no blanks between words: overlapping pairs of characters stand in for them.
_RUN = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]+|[\p{L}\p{N}]+")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")


def words(text):
    """Lower-case words of a text in any script; of unspaced scripts all pairs of neighbours."""
    out = []
    for run in _RUN.findall(text.lower()):
        if len(run) > 1 and _UNSPACED.match(run):
            out += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            out.append(run)
    return out


class Index:
    """BM25 (Lucene's form) over documents given as word lists; built at the first query after a change."""

    def __init__(self):
        self.documents = []
        self._ranker = None

    def change(self, documents):
        """Replaces the documents, word lists."""
        self.documents, self._ranker = list(documents), None

    def scores(self, query):
        """The score of each document for a list of words, float32 numpy, 0 where nothing matches."""
        if not any(self.documents) or not query:
            return np.zeros(len(self.documents), np.float32)
        if self._ranker is None:
            import bm25s  # half a second that a first message need not wait for

            self._ranker = bm25s.BM25()
            self._ranker.index(self.documents, show_progress=False)
        return np.asarray(self._ranker.get_scores(query), np.float32)
