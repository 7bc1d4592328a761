"""How well messages that lay down a rule are recognized: `python -m evals.recognizer --data FILE --json` (Table 9's kind)."""

import argparse
import json
import sys
from pathlib import Path

from infer import recognizer
from rhea_jax.startup import in_one_line


def read(path):
    """(text, label) of each line of a JSON Lines file.  Raises: ValueError naming file, line and what is wrong."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None
    rows = []
    for n, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append((row["text"], int(row["label"])))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError):
            raise ValueError(f"{path} line {n} is {line[:60]!r}; allowed: a JSON object with text and label 0 or 1") from None
    if not rows:
        raise ValueError(f"{path} is empty; allowed: JSON Lines with text and label")
    return rows


def measure(rows, verdict):
    """accuracy, precision, recall and n of a verdict over (text, label) rows; precision is 0 where nothing is found."""
    said = [(bool(verdict(text)), label == 1) for text, label in rows]
    hit = sum(s and t for s, t in said)
    return {"accuracy": round(sum(s == t for s, t in said) / len(said), 4), "precision": round(hit / max(1, sum(s for s, _ in said)), 4),
            "recall": round(hit / max(1, sum(t for _, t in said)), 4), "n": len(said)}


def main():
    parser = argparse.ArgumentParser(prog="evals.recognizer", description=__doc__)
    parser.add_argument("--data", required=True, help="JSON Lines with text and label")
    parser.add_argument("--recognizer", help="a model whose verdict is combined with the rules")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    args = parser.parse_args()
    rows = read(args.data)
    result = measure(rows, recognizer.is_global)
    if args.recognizer:
        from infer.backbone import load_verdict

        log_odds = load_verdict(args.recognizer)
        result["combined"] = measure(rows, lambda text: recognizer.combine(recognizer.is_global(text), text, log_odds(text)))
    print(json.dumps(result))
    if not args.json:
        for text, label in rows:
            if recognizer.is_global(text) != (label == 1):
                print("missed:" if label else "false alarm:", text[:200].replace("\n", " "))


if __name__ == "__main__":
    sys.exit(in_one_line(main))
