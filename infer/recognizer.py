"""The instruction recognizer: does a message hold for the replies that follow, and what becomes of the rules (paper 3.3)."""

from dataclasses import dataclass

import regex

from infer import phrases as p
from infer.rules import ABOUT, CANCEL, CANCEL_ALL, COMMON, FORBIDS, FREES, KINDS, NAMES, STOPS, TAIL, WISH

# No alternative passes an opening mark of its own: a run of unclosed ones would cost the square of its length.
_QUOTED = regex.compile(
    r"```.*?(?:```|$)|`[^`\n]{1,200}`|\"[^\"\n]{0,400}\"|“[^“”\n]{0,400}”|«[^«»\n]{0,400}»|„[^„“”\n]{0,400}[“”]"
    r"|「[^「」\n]{0,400}」|『[^『』\n]{0,400}』|(?<=\s|^)'[^'\n]{2,200}'(?=[\s.,;:!?]|$)",
    regex.DOTALL,
)
_SENTENCE = regex.compile(r"[^.!?。！？；;\n]+(?:[.!?](?=[\w/])[^.!?。！？；;\n]+)*[.!?。！？；;…\"”')\]]*")
_HAN, _KANA = regex.compile(r"\p{Han}"), regex.compile(r"[\p{Hiragana}\p{Katakana}]")
_EDGE = 4  # of a message with a document in it, so many sentences at either end are heard
_LONG = 300  # characters: up to here a message that is a rule is kept whole
_CLAUSE = regex.compile(r"[,;:，；：—–]|\b(?:and|but|instead|et|und|y|e)\b|(?<=[.。!?])\s")
_BULLET = regex.compile(r"^(?:[*•·-]|\d+[.)])\s")
_HEAD = regex.compile(r"[:：]\s*(?:$|\n)")
_ASKED = regex.compile(r"\b(?:can|could|would|will) you\b|\byou (?:can|could|must|should|will)\b", regex.I)
_LEAD = regex.compile(r"^[^\p{L}\p{N}]+")
_BACKWARD = regex.compile(r"(?:in|across|within|from|during|over|any|all|every|each|everything|anything|end|course)\b", regex.I)
_LOOSE = regex.compile(
    r"(?:every|each|all|any)\b(?!.*\b(?:your|future|upcoming|subsequent|later)\b)|(?:every|each|any) ?time|whenever|whatever|regardless|no matter|per\b|throughout\W*$",
    regex.I,
)
_MAKING = regex.compile(
    r"^(?:please )?(?:write|create|generate|draft|compose|tell|build|design|develop|make)(?: me| us)? (?:an?|the|some)\b",
    regex.I,
)
_FILLER = regex.compile(
    r"^(?:ok(?:ay)?|hi|hello|hey|thanks?|thank you|please|great|got it|understood|sure|yes|no|good (?:morning|evening|afternoon)"
    r"|你好|谢谢|好的|可以吗|好吗|明白吗|please confirm|(?:is that |all )?(?:ok(?:ay)?|clear|right|alright)|if you understand.*"
    r"|(?:do you )?(?:understand|understood)(?: me)?)\W*$",
    regex.I,
)


@dataclass(frozen=True)
class Change:
    """What one message did to the rules: `op` is add, replace, cancel or duplicate."""

    op: str
    rule: str
    old: str | None = None


def _sentences(text):
    """(sentence, the same with quoted spans and code blanked out); of a long text only those at its ends.

    A line that ends with a colon and the bullets below it are one sentence.
    """
    masked = _QUOTED.sub(lambda m: "\x00" * len(m[0]), text)
    spans = []
    for a, b in (m.span() for m in _SENTENCE.finditer(masked) if m[0].strip("\x00 \t")):
        if spans and _BULLET.match(text[a:b].lstrip()) and _HEAD.search(text[slice(*spans[-1])]):
            spans[-1] = spans[-1][0], b
        else:
            spans.append((a, b))
    if len(spans) > 3 * _EDGE:
        spans = spans[:_EDGE] + spans[-_EDGE:]
    return [(text[a:b].strip(), _LEAD.sub("", masked[a:b].replace("\x00", " ").replace("’", "'")).strip()[:600]) for a, b in spans]


def _is_work(plain):
    """Whether a sentence asks a question or sets a task."""
    if not plain or _FILLER.match(plain):
        return False
    return bool(plain.endswith(("?", "？")) or p.QUESTION.search(plain) or p.TASK.search(plain) or p.ZH_TASK.search(plain))


def _chinese(plain):
    if p.ZH_STANDING.search(plain):
        return True
    asks = regex.search(r"[?？吗呢]\s*[。]?$", plain) and "请" not in plain
    return bool(p.ZH_SCOPE.search(plain) and p.ZH_DIRECTIVE.search(plain) and not p.ZH_TASK.search(plain) and not asks)


def _english(plain, in_task):
    if p.STANDING.search(plain) or p.STEADY.search(plain):
        return not (plain.endswith("?") and p.QUESTION.search(plain))
    if not p.DIRECTIVE.search(plain) or _MAKING.search(plain) or (plain.endswith("?") and not _ASKED.search(plain)):
        return False
    back, loose = p.BACK.search(plain), in_task or p.TASK.search(plain)
    scopes = (m[0] for m in p.SCOPE.finditer(plain))
    return any(not (back and _BACKWARD.match(s)) and not (loose and _LOOSE.match(s)) for s in scopes)


def _carries(plain, in_task=False, alone=False):
    """Whether one sentence, quotes blanked, lays down a rule for the replies to come.

    in_task: the message sets a task, so that "each answer" may speak of what is to be made; alone: there is nothing else to do
    in it, so that "your answers" can only speak of the replies.
    """
    if not plain or p.ONCE.search(plain) or p.TOLD.search(plain):
        return False
    if _HAN.search(plain) and not _KANA.search(plain) and (_chinese(plain) or alone and p.ZH_LOOSE.search(plain)):
        return True
    if any(scope.search(plain) and asked.search(plain) for scope, asked in p.OTHERS) and not (
        plain.endswith(("?", "？")) or p.TRANSLATE.search(plain)
    ):
        return True
    return _english(plain, in_task) or bool(alone and p.LOOSE.search(plain))


def rule_sentences(text):
    """The sentences of a message that carry a rule, verbatim.

    Paper: section 3.3; the rules stand in for, or beside, the classifier's verdict.
    """
    parts = _sentences(text)
    in_task = any(_is_work(plain) and not p.SCOPE.search(plain) for _, plain in parts)
    alone = not in_task and len(text) <= _LONG
    return [sentence for sentence, plain in parts if _carries(plain, in_task, alone)]


def is_global(text):
    """Whether the rules find that a message holds for the replies that follow."""
    return bool(rule_sentences(text))


def says_only_rule(text):
    """Whether a message has nothing but its rules, so that its exchange may be left out of the episodic memory.

    A question, a task or a statement is something else; a bullet or a further wish is not.  Of a long message only its rule
    sentences are kept, so there every sentence must be one.
    """
    carried = set(rule_sentences(text))
    if not carried:
        return False
    for sentence, plain in _sentences(text):
        if sentence in carried:
            if TAIL.search(plain):
                return False
        elif not _FILLER.match(sentence):
            part = p.DIRECTIVE.search(plain) or _BULLET.match(sentence) or p.ZH_DIRECTIVE.search(plain)
            if len(text) > _LONG or _is_work(plain) or not part:
                return False
    return True


def extract(text, im="sentences"):
    """What of a message enters the instructional memory, verbatim.

    im "whole": all of it (the paper); "sentences": a short message that is nothing but a rule whole, else its rule sentences.
    """
    carried = rule_sentences(text)
    if not carried or im == "whole" or (len(text) <= _LONG and says_only_rule(text)):
        return [text.strip()] if carried else []
    return carried


def _clauses(rule):
    """(clause, whether it forbids): a prohibition goes on until a new wish ("no tables, lists or headings, write prose")."""
    forbids, out = False, []
    for clause in filter(str.strip, _CLAUSE.split(rule)):
        if FORBIDS.search(clause):
            forbids = True
        elif WISH.search(clause) or p.ZH_DIRECTIVE.search(clause):
            forbids = False
        out.append((clause, forbids))
    return out


def _kinds(rule):
    """All that a rule is about; of what it forbids only a length, for a prohibition names nothing to have instead."""
    parts = _clauses(_QUOTED.sub(" ", rule).replace("’", "'"))
    return {
        name
        for name, pattern in KINDS.items()
        if any(pattern.search(clause) and (name == "length" or not forbids) for clause, forbids in parts)
    }


def _key(rule):
    return regex.sub(r"\s+", " ", rule).strip().strip(".!。！… ").casefold()


def _words(text):
    """Content words, plurals cut, and pairs of Chinese characters: what two sentences must share to speak of one thing."""
    words = {w.casefold().removesuffix("s") for w in regex.findall(r"(?!\p{Han})[\p{L}\p{N}]{2,}", text)}
    return (words | set(regex.findall(r"\p{Han}{2}", text, overlapped=True))) - COMMON


def _cancelled(rules, sentence):
    """Those rules that a cancelling sentence refers to: most words shared, else the only one of a kind that it names.

    "stop" speaks of what a rule wants, "you may again" of what a rule forbids, "forget the rule" of either.
    """
    if CANCEL_ALL.search(sentence) and not ABOUT.search(sentence):
        return list(rules)
    stops, frees = bool(STOPS.search(sentence)), bool(FREES.search(sentence))
    shares = {}
    for rule in rules:
        text = " ".join(c for c, forbids in _clauses(rule) if not (stops and forbids or frees and not forbids))
        shares[rule] = len(_words(text) & _words(sentence))
    most = max(shares.values(), default=0)
    if most:
        return [rule for rule in rules if shares[rule] == most]
    named = {name for name, pattern in NAMES.items() if pattern.search(sentence)}
    same = [rule for rule in rules if named & _kinds(rule)]
    return same if len(same) == 1 else []


def _wish(sentence):
    """Where behind a cancellation a wish of its own begins ("stop answering in French, answer in German"), or None."""
    starts = [m.end() for m in _CLAUSE.finditer(sentence)]
    return next((at for at in starts if WISH.search(sentence[at:]) or p.STANDING.search(sentence[at:].strip())), None)


def _take_back(kept, text, im):
    """(rules left after the cancellations of a message, changes, sentences that are used up by it)."""
    kept, changes, used = list(kept), [], []
    for sentence, plain in _sentences(text):
        if p.ONCE.search(plain) or not CANCEL.search(plain) or (len(text) > _LONG and CANCEL_ALL.search(plain)):
            continue
        at = _wish(sentence)
        gone = _cancelled(kept, sentence[:at])
        if at is not None and gone:
            new = text.strip() if im == "whole" else sentence
            kept[kept.index(gone[0])] = new
            changes.append(Change("replace", new, gone.pop(0)))
            used.append(sentence)
        elif gone or not STOPS.search(plain):
            used.append(sentence)
        for rule in gone:
            kept.remove(rule)
            changes.append(Change("cancel", sentence, rule))
    return kept, changes, used


def update(rules, text, im="sentences", im_update="replace", found=None):
    """The rules after a message, and what changed.

    im_update "union" is Eq. 3 with duplicates (case, blanks, final stop) left out.  "replace" besides lets a cancellation take
    out the rules that it refers to, and a newer rule take the place of an older one where both are about the very same kinds
    of thing; in doubt the older one stays.  found: what to take in, when somebody else has recognized the message.
    Paper: section 3.3, Eq. 3.
    """
    kept, changes = list(rules), []
    new = extract(text, im) if found is None else list(found)
    if im_update == "replace":
        kept, changes, used = _take_back(kept, text, im)
        if used:
            left = [s for s in rule_sentences(text) if s not in used]
            new = [text.strip()] if left and im == "whole" else left
    for rule in new:
        if any(_key(rule) == _key(k) for k in kept):
            changes.append(Change("duplicate", rule))
            continue
        about = _kinds(rule) if im_update == "replace" else set()
        old = next((k for k in kept if about and _kinds(k) == about), None)
        if old is None:
            kept.append(rule)
            changes.append(Change("add", rule))
        else:
            kept[kept.index(old)] = rule
            changes.append(Change("replace", rule, old))
    return tuple(kept), tuple(changes)


def verdict_prompt(text):
    """The classifier's prompt as a raw completion, the message on one line, quoted, at most 600 characters of it.

    Paper: Table 6.
    """
    line = regex.sub(r"\s+", " ", text).strip()
    if len(line) > 600:
        line = f"{line[:400]} … {line[-197:]}"
    line = line.replace("\\", "\\\\").replace('"', '\\"')  # after the cut, which could part a quote from its backslash
    return (
        'You are a classifier. Determine whether the following user input is a "global instruction" in a multi-turn conversation.\n'
        "A global instruction is a directive that affects all subsequent responses such as their style, format, length, or language.\n"
        "If the input is a global instruction, answer: YES. If not, answer: NO.\nExamples:\n"
        'Input: "Explain what is a poem?" Answer: NO\nInput: "All future answers must be less than 30 words." Answer: YES\n'
        f'Input: "Every answer should end with a joke." Answer: YES\nInput: "{line}" Answer:'
    )


def combine(rules_say, text, log_odds=None):
    """The verdict of rules and classifier: what the rules find stands; the classifier adds, when it is sure, a short request.

    log_odds: log P(YES) - log P(NO), or None without a classifier.
    """
    if rules_say or log_odds is None:
        return rules_say
    request = p.DIRECTIVE.search(text) or p.ZH_DIRECTIVE.search(text)
    return log_odds > 2.0 and len(text) <= _LONG and bool(request) and not regex.search("[?？]", text) and not (
        p.TASK.search(text) or p.ZH_TASK.search(text) or p.ONCE.search(text)
    )
