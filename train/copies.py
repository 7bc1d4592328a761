"""Chats that repeat one that is held back: `python -m train.copies > train/exclude_copies.txt`."""

import sys

from train import filters, overlap, sources

HELD_BACK = "held back"


def sketches(source, seed=0):
    """Yields (base, whether it is held back, sketch) of every session of a source that has an exchange."""
    label, paths = sources.find(source)
    excluded = sources.excluded_bases()
    for path in paths:
        for session in sources.read(path, label, lambda line: print(line, file=sys.stderr)):
            _, _, pairs, _ = filters.exchanges(session.messages)
            if pairs:
                text = "\n".join(text for pair in pairs for text in pair)
                held = sources.why_excluded(session.id, excluded) == HELD_BACK
                yield session.base, held, overlap.sketch(text, seed)


def copies(source, seed=0):
    """The hashed bases, sorted, of chats of which a session is a near-duplicate of one that is held back."""
    seen, others = overlap.Seen(seed), []
    for base, held, sketch in sketches(source, seed):
        if held:
            seen.add(sketch)
        else:
            others.append((base, sketch))
    return sorted({sources.hash_base(base) for base, sketch in others if seen.like(sketch)})


if __name__ == "__main__":
    print(*copies(sys.argv[1] if len(sys.argv) > 1 else "sharegpt"), sep="\n")
