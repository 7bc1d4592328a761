"""The instruction recognizer: does a message hold for the replies that follow, and what becomes of the rules (paper 3.3)."""

from dataclasses import dataclass

import regex

from infer import phrases as p

_QUOTED = regex.compile(
    r"```.*?(?:```|$)|`[^`\n]{1,200}`|\"[^\"\n]{0,400}\"|“[^”\n]{0,400}”|«[^»\n]{0,400}»|「[^」\n]{0,400}」|『[^』\n]{0,400}』|(?<=\s|^)'[^'\n]{2,200}'(?=[\s.,;:!?]|$)",
    regex.DOTALL,
)
_SENTENCE = regex.compile(r"[^.!?。！？；;\n]+(?:[.!?](?=[\w/])[^.!?。！？；;\n]+)*[.!?。！？；;…\"”')\]]*")
_HAN, _LETTER = regex.compile(r"\p{Han}"), regex.compile(r"\p{L}")
_EDGE = 4  # of a message with a document in it, so many sentences at either end are heard
_LONG = 300  # characters: up to here a message that is a rule is kept whole
_MAKING = regex.compile(
    r"^(?:please )?(?:write|create|generate|draft|compose|tell|build|design|develop|make)(?: me| us)? (?:an?|the|some)\b",
    regex.I,
)
_FILLER = regex.compile(
    r"^(?:ok(?:ay)?|hi|hello|hey|thanks?|thank you|please|great|got it|understood|sure|yes|no|good (?:morning|evening|afternoon)|你好|谢谢|好的|可以吗|好吗|please confirm|is that (?:ok|clear)|if you understand.*|do you understand)\W*$",
    regex.I,
)


@dataclass(frozen=True)
class Change:
    """What one message did to the rules: `op` is add, replace, cancel or duplicate."""

    op: str
    rule: str
    old: str | None = None


def _sentences(text):
    """(sentence, the same with quoted spans and code blanked out); of a long text only those at its ends."""
    masked = _QUOTED.sub(lambda m: "\x00" * len(m[0]), text)
    spans = [m.span() for m in _SENTENCE.finditer(masked) if masked[m.start() : m.end()].strip("\x00 \t")]
    if len(spans) > 3 * _EDGE:
        spans = spans[:_EDGE] + spans[-_EDGE:]
    return [(text[a:b].strip(), masked[a:b].replace("\x00", " ").strip()[:600]) for a, b in spans]


def _carries(plain, in_task):
    """Whether one sentence, quotes blanked, lays down a rule for the replies to come."""
    if not plain or p.ONCE.search(plain):
        return False
    if _HAN.search(plain) and not regex.search(r"[\p{Hiragana}\p{Katakana}]", plain):
        if p.ZH_STANDING.search(plain):
            return True
        asks = regex.search(r"[?？吗呢]\s*[。]?$", plain) and not regex.search(r"请", plain)
        return bool(
            p.ZH_SCOPE.search(plain) and p.ZH_DIRECTIVE.search(plain) and not p.ZH_TASK.search(plain) and not asks
        )
    if any(scope.search(plain) and asked.search(plain) for scope, asked in p.OTHERS) and not (
        plain.endswith("?") or p.TRANSLATE.search(plain)
    ):
        return True
    if p.STANDING.search(plain) or p.STEADY.search(plain):
        return not (plain.endswith("?") and p.QUESTION.search(plain))
    scope = p.SCOPE.search(plain)
    if not scope or not p.DIRECTIVE.search(plain):
        return False
    if plain.endswith("?"):
        asked = regex.search(
            r"\b(?:can|could|would|will) you\b|\byou (?:can|could|must|should|will)\b", plain, regex.I
        )
        return bool(asked and regex.search(r"now on|going forward|every|each|all your|throughout", scope[0], regex.I))
    if _MAKING.search(plain):
        return False
    loose = regex.match(
        r"(?:every|each|all|any)\b(?!.*\byour\b)|(?:every|each|any) ?time|whenever|whatever|regardless|no matter",
        scope[0],
        regex.I,
    )
    return not (loose and (in_task or p.TASK.search(plain)))


def rule_sentences(text):
    """The sentences of a message that carry a rule, verbatim.

    Paper: section 3.3; the rules stand in for, or beside, the classifier's verdict.
    """
    parts = _sentences(text)
    in_task = any(p.TASK.search(plain) and not p.SCOPE.search(plain) for _, plain in parts)
    return [sentence for sentence, plain in parts if _carries(plain, in_task)]


def is_global(text):
    """Whether the rules find that a message holds for the replies that follow."""
    return bool(rule_sentences(text))


def says_only_rule(text):
    """Whether a message has nothing but its rules: no question and no task to answer."""
    carried = set(rule_sentences(text))
    if not carried:
        return False
    rest = [(s, plain) for s, plain in _sentences(text) if s not in carried and not _FILLER.match(s)]
    asks = any(
        plain.endswith(("?", "？")) or p.QUESTION.search(plain) or p.TASK.search(plain) or p.ZH_TASK.search(plain)
        for _, plain in rest
    )
    return not asks and len(text) <= 4 * _LONG


def extract(text, im="sentences"):
    """What of a message enters the instructional memory, verbatim.

    im "whole": all of it (the paper); "sentences": a short message that is nothing but a rule whole, else its rule sentences.
    """
    carried = rule_sentences(text)
    if not carried or im == "whole" or (len(text) <= _LONG and says_only_rule(text)):
        return [text.strip()] if carried else []
    return carried


def kinds(rule):
    """What a rule is about: any of the names in phrases.KINDS."""
    plain = _QUOTED.sub(" ", rule)
    return frozenset(name for name, pattern in p.KINDS.items() if pattern.search(plain))


def _key(rule):
    return regex.sub(r"\s+", " ", rule).strip().strip(".!。！ ").casefold()


def _words(text):
    return {w for w in regex.findall(r"[\p{L}\p{N}]{3,}|\p{Han}", text.casefold())} - _COMMON


_COMMON = set(
    "the you your all and any with for stop use using please rule rules instruction instructions about anymore forget ignore "
    "cancel drop every each now from not don that this need have longer answers answer replies reply responses response in 不 用 再 了 要 的 别".split()
)


def _cancelled(rules, sentence):
    """Those rules that a cancelling sentence refers to: by kind, else by words they share; all of them on request."""
    if p.CANCEL_ALL.search(sentence) and not regex.search(r"\babout\b|关于", sentence):
        return list(rules)
    about, words = kinds(sentence), _words(sentence)
    shared = [r for r in rules if about & kinds(r)]
    best = [r for r in (shared or rules) if words & _words(r)]
    return best or (shared if len(shared) == 1 else [])


def update(rules, text, im="sentences", im_update="replace", found=None):
    """The rules after a message, and what changed.

    im_update "union" is Eq. 3 with duplicates (case, blanks, final stop) left out.  "replace" besides lets a cancellation take
    out the rules that it refers to, and a newer rule take the place of an older one when their kinds are the very same;
    in doubt the older one stays.  found: what to take in, when somebody else has recognized the message.
    Paper: section 3.3, Eq. 3.
    """
    kept, changes = list(rules), []
    new = extract(text, im) if found is None else list(found)
    if im_update == "replace":
        for sentence, plain in _sentences(text):
            if p.CANCEL.search(plain) and not p.ONCE.search(plain):
                gone = _cancelled(kept, sentence)
                for rule in gone:
                    kept.remove(rule)
                    changes.append(Change("cancel", sentence, rule))
                if gone or not _carries(plain, False) or _only_ends(plain):
                    new = [
                        n
                        for n in new
                        if _key(n) != _key(sentence)
                        and (_key(sentence) not in _key(n) or len(n) > len(sentence) + 20)
                    ]
    for rule in new:
        if any(_key(rule) == _key(k) for k in kept):
            changes.append(Change("duplicate", rule))
            continue
        old = next((k for k in kept if im_update == "replace" and kinds(k) and kinds(k) == kinds(rule)), None)
        if old is None:
            kept.append(rule)
            changes.append(Change("add", rule))
        else:
            kept[kept.index(old)] = rule
            changes.append(Change("replace", rule, old))
    return tuple(kept), tuple(changes)


def _only_ends(plain):
    """A cancellation without a rule of its own, such as "you no longer need to answer in rhyme"."""
    return not regex.match(r"\W*(?:please )?(?:stop|don(?:'|’)t|do not|never|别|不要)", plain, regex.I)


def verdict_prompt(text):
    """The classifier's prompt as a raw completion, the message on one line, quoted, at most 600 characters of it.

    Paper: Table 6.
    """
    line = regex.sub(r"\s+", " ", text).strip().replace("\\", "\\\\").replace('"', '\\"')
    if len(line) > 600:
        line = f"{line[:400]} … {line[-197:]}"
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
    return (
        log_odds > 2.0
        and len(text) <= _LONG
        and "?" not in text
        and bool(p.DIRECTIVE.search(text))
        and not p.TASK.search(text)
    )
