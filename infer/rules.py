"""Phrases that tell what a rule is about, and those that take one back."""

from infer.phrases import DO, PLEASE, any_of

# Kinds of rule, told by what they are about.  Only what a rule fixes counts: "curse words" is no length, "open source" no opening.
_LANGUAGES = r"(?:english|french|german|spanish|italian|portuguese|russian|chinese|mandarin|cantonese|japanese|korean|arabic|hindi|latin|dutch|polish|turkish|swedish|norwegian|danish|finnish|czech|greek|punjabi|bulgarian|hebrew|vietnamese|thai|ukrainian|persian|urdu|bengali|fran[cç]ais|anglais|allemand|espagnol|italien|deutsch|englisch|franz[oö]sisch|spanisch|espa[nñ]ol|ingl[eé]s(?:e)?|franc[eé]s|alem[aá]n|italiano|tedesco|portugu[eê]s|英文|英语|中文|汉语|普通话|法语|德语|日语|日文|韩语|俄语|西班牙语|繁体|简体|文言文|粤语|日本語|英語|中国語|フランス語|韓国語|한국어|영어|일본어|중국어|русск\w+|английск\w+|немецк\w+|французск\w+)"
_COUNT = r"(?:\d+|an?|one|two|three|four|five|six|seven|eight|nine|ten|single|few(?:er)?|half an?|some|ein(?:em|en|er)?|zwei|drei|un[ae]?|deux|trois|dos|tres|due|tre|uma?|dois|duas|одн\w+|дв\w+|тр\w+)"
_UNIT = r"(?:words?|sentences?|characters?|letters|paragraphs?|lines?|mots|phrases?|wörter\w*|sätze\w*|satz|palabras?|oración|oraciones|parole|frasi|frase|palavras|frases|слов\w*|предложени\w*)"
KINDS = {
    "address": any_of(
        r"\b(?:call|address|greet|refer to) me\b|\bmy name(?:'s| is)\b|叫我|称呼|喊我|\bnenn\w* mich\b|\bappelle\w*-moi\b|\bll[aá]mame\b|\bchiamami\b|\bme chame? de\b|\b(?:зови|называй)(?:те)? меня\b|呼んで|불러"
    ),
    "opening": any_of(
        r"\b(?:begin|start|open|preface|prefix)(?:s|ning|ing)? (?:(?:all|every|each|any|your|the|of|my) ){0,4}(?:\w+ ){0,3}?(?:with|by)\b|\b(?:begin|start)s? by\b|\bstart by\b|开头|起首|以\S+开始|\bcommence|\bbeginn|\bempieza|\bcomienza|\binizia\b|\bcomece|\bначина|で始め|で始ま|시작"
    ),
    "ending": any_of(
        r"\b(?:end|finish|close|conclude)(?:s|es|ing)?\b(?! of (?:this|our|the) (?:conversation|chat|session))|\bsign(?:ing)? off\b|结尾|末尾|结束语|最后加|\btermin|\bbeend|\bfini[st]|\bacaba|\bзаканчива|\bзаверша|で終わ|末尾|끝"
    ),
    "length": any_of(
        rf"\b{_COUNT}[- ](?:\w+ )?{_UNIT}\b|\b(?:short|shorter|brief|briefly|concise(?:ly)?|terse|succinct|lengthy|lengths?|long|longer|detailed|kurze?n?|courte?s?|breves?|cort[ao]s?|curt[ao]s?|корот\w+|кратк\w+)\b|[\d一二两三四五六七八九十百千几]+ ?个?(?:字|句|段|词|行)|简短|简洁|长篇|长度|字数|文字以内|[一二三\d]文|短く|[한두세\d] ?문장|짧게"
    ),
    "language": any_of(
        rf"\b(?:in|into|(?<!I )(?:use|speak|write)|only|using|to|auf|en|em|su|на|по-)\s?(?:\w+ )?{_LANGUAGES}\b|{_LANGUAGES}(?:回|写|作|说|交流|跟|和|语|来|答|で|로)|(?:用|使用){_LANGUAGES}|^{_LANGUAGES}\b|\b(?:le|la|il|el|das|in|the) {_LANGUAGES}\b|\b{_LANGUAGES} (?:only|language|spelling|rule)\b|\blanguage (?:rule|of)\b|\b(?:about|my|the) language\b|语言"
    ),
    "case": any_of(
        r"\b(?:upper|lower)[- ]?case\b|\bcapital(?:s| letters|i[sz]ed|i[sz]ation)?\b|\blower letters\b|\b(?:all[- ]caps|minuscul\w*|maiuscol\w*|minúscul\w*|mayúscul\w*|majuscul\w*|kleinbuchstaben|großbuchstaben)\b|大写|小写"
    ),
    "format": any_of(
        r"\b(?:json|xml|yaml|html|markdown|bullet(?:s| points?|ed)?|table|tables|lists?|numbered|plain text|prose|code blocks?)\b|列表|分点|表格|格式|要点|箇条書き|\b(?:listes?|tableaux?|listen?|tabellen?|listas?|tablas?|tabelle)\b"
    ),
    "persona": any_of(
        r"\b(?:act as|act like|pretend|behave (?:as|like)|role-?play|you(?: are|'re|'ll be| will be)(?: going to be)? (?:an?|my)\b|(?:speak|talk|sound|write) like|(?:respond|reply|answer|speak|talk|write) as\b|think of yourself|stay in character)|扮演|假装|当作|角色|你(?:就|要)?是我?的"
    ),
    "tone": any_of(
        r"\b(?:tone|formal|informal|polite|friendly|casual|humou?r(?:ous)?|funny|sarcastic|cheerful|register|rude|blunt|duz\w*|siez\w*|tutoie\w*|vouvoie\w*|tut[eé]ame)\b|语气|敬语|礼貌|正式|幽默|敬語|반말|존댓말"
    ),
}
# What a rule forbids says nothing of what it wants instead.
FORBIDS = any_of(
    r"\b(?:never|don't|do not|avoid|without|must not|mustn't|should not|shouldn't|stop|quit|refrain|no|none|not|jamais|évite\w*|keine?n?|nie|nicht|nunca|evita|mai|não|никогда|не)\b|不要|别|不得|不许|不准|禁止|避免|しないで|ないで|마세요|말아"
)
# Taking a rule back.
CANCEL = any_of(
    rf"^{PLEASE}(?:you (?:can|may|should|must) )?(?:stop|quit|cease)\b(?! (?:sign|words?|the)\b)",
    r"\byou (?:no longer (?:have|need) to|need no longer)\b|\bno longer (?:have|need) to\b|\bno need (?:to|for)\b.{0,80}\b(?:any ?more|any longer|now)\b",
    r"\byou (?:don't|do not|needn't)(?: (?:have|need) to)?\b.{0,80}\b(?:any ?more|any longer|now)\b",
    rf"^{PLEASE}(?:don't|do not|never)\b.{{0,100}}\b(?:any ?more|any longer)\b",
    rf"^{PLEASE}(?:no more|enough (?:with|of)) \w+",
    rf"^{PLEASE}you (?:can|may|could) (?:\w+ )?(?:use|write|say|start|answer|speak|go|be|include|add|mention|call|end|give)\b.{{0,80}}\bagain\b",
    rf"^{PLEASE}(?:you (?:can|may|should) )?(?:forget|ignore|cancel|drop|lose|remove|undo|lift|disregard|delete|scrap|revoke|abandon)\b.{{0,60}}\b(?:rules?|instructions?|constraints?|requirements?|limits?|restrictions?|things?|habit|act|persona|that you|what I said about|about)\b",
    r"\b(?:back|return) to (?:\w+ )?(?:normal|usual)\b|\b(?:answer|reply|write|speak) normally\b",
    r"(?:不用|不必|不需要|无需|不要|别|停止|不再)(?:再|继续)|(?:取消|撤销|忘掉|忽略|删除|解除|忘记|去掉)\S{0,14}(?:规则|要求|限制|指令|设定|约定)|(?:恢复|回到)正常|可以不用?再?\S{0,10}了$",
    r"\b(?:arrête\w*|cesse\w*) (?:de|d')|\b(?:oublie|ignore|annule)\w* (?:la|les|toutes les|cette|ma|mes) (?:règles?|consignes?|instructions?)|\btu n'(?:as|es) plus (?:besoin|obligé)",
    r"\bhör\w* auf\b|\b(?:vergiss|vergessen sie|ignoriere?|lösche?) (?:die|alle|alle meine|meine|diese) (?:\w+ )?(?:regeln?|anweisung(?:en)?)|\bdu (?:musst|brauchst)\b.{0,60}\b(?:nicht|keine?n?) mehr\b",
    r"\b(?:deja|dejen?) de\b|\b(?:olvida|ignora|cancela|dimentica|esqueça|esquece|cancele|annulla)\w* (?:l[ao]s?|tod[ao]s (?:l[ao]s|as|os)|tutte le|todas as|as?|mis?|le|la) (?:reglas?|instruccion(?:es)?|instrucción|regol[ae]|istruzion[ei]|regras?|instruç\w+)|\bya no (?:tienes|hace falta|necesitas)|\bsmetti(?:la)? di\b|\bnon devi più\b|\bpar[ae] de\b|\bnão precisa mais\b",
    r"\b(?:перестань|прекрати|хватит)(?:те)?\b|\b(?:забудь|отмени)(?:те)? (?:все |мои |это |правило|правила)|\bбольше не (?:надо|нужно)\b",
    r"(?:の|という)(?:ルール|指示|約束)(?:は|を)(?:忘れ|取り消|無視|やめ)|もう\S{0,30}(?:なくていい|必要はありません|やめて)|(?:규칙|지시)\S{0,4} ?(?:은|는|을|를)? ?(?:잊|취소|무시)|더 이상\S{0,3} .{0,20}(?:지 (?:않아도|마)|필요 ?없)|그만 ",
)
CANCEL_ALL = any_of(
    r"\b(?:all|every|any|my)(?: of)?(?: (?:the|my|your|previous|earlier|these|other))* (?:rules?|instructions?|constraints?|restrictions?)\b|(?:所有|全部|之前)的?\S{0,3}(?:规则|要求|限制|指令)|\b(?:toutes (?:les|mes) (?:règles|consignes|instructions)|alle (?:meine )?(?:regeln|anweisungen)|todas (?:las|mis|as|minhas) \w+|tutte le \w+|все (?:мои )?(?:правила|инструкции))\b|(?:すべて|全て|全部)の(?:ルール|指示)|모든 (?:규칙|지시)"
)
# "stop", "no more": of what a rule wants.  "you may again": of what it forbids.
STOPS = any_of(
    rf"^{PLEASE}(?:you (?:can|may|should|must) )?(?:stop|quit|cease|no more|enough)\b",
    rf"^{PLEASE}(?:don't|do not|never)\b",
    r"(?:别|不要|停止|不再)(?:再|继续)|^\W*(?:arrête|cesse|hör|deja|smetti|par[ae] de|перестань|прекрати|хватит)",
)
FREES = any_of(rf"^{PLEASE}you (?:can|may|could)\b.{{0,90}}\bagain\b", r"可以再?\S{0,8}(?:了)?$")
ABOUT = any_of(r"\b(?:about|on|sur|über|sobre|su|про)\b|关于")
# Names by which people speak of a kind of rule without its words.
NAMES = {
    "address": any_of(r"\b(?:name|address|nickname)\b|称呼|名字"),
    "opening": any_of(r"\b(?:opening|beginning|start)s?\b|开头"),
    "ending": any_of(r"\b(?:ending|closing|sign-?off|at the end)\b|结尾"),
    "length": any_of(r"\b(?:lengths?|brevity|(?:word|length|sentence) (?:limit|count)|be (?:short|brief|concise))\b|长度|字数|长短"),
    "language": any_of(r"\b(?:language|langue|sprache|idioma|lingua)\b|语言"),
    "format": any_of(r"\bformat(?:ting)?\b|格式"),
    "case": any_of(r"\b(?:case|caps|capitals?|capitali[sz]ation|upper-?case|lower-?case)\b|大小写|大写|小写"),
    "persona": any_of(r"\b(?:persona|character|role|act)\b|角色|人设"),
    "tone": any_of(r"\b(?:tone|style)\b|语气|风格"),
}
COMMON = frozenset(
    "the you your all any with for of to in is it be no my me we us so do as at on or if an and but stop use using please rule instruction "
    "about anymore forget ignore cancel drop every each now from not don that thi need have longer more answer answering reply replie "
    "response respond again can may should must limit thing alway never going forward back word end ending start starting go what how "
    "de la le el die der das les las un une und et per di 规则 回答 回复 以后 每次 不用 不要 要求 取消 再用 继续 请用 都用 的回 用的".split()
)
# A word that starts a wish of its own behind a cancellation: "stop answering in French, answer in German".
WISH = any_of(
    rf"^\W*(?:and |but |so |then |from now on,? |please |instead,? |just |rather )*(?:always |only )?(?!stop|quit|don't|do not|forget|ignore|cancel|drop|never){DO}\b",
    r"^(?:请|而是|改成?|改用|以后|用)\S*(?:用|叫|写|说|回)\S",
)
# A task in the same sentence as a rule: "..., and tell me the capital of Peru".
TAIL = any_of(
    r"(?:[,;:–—]|\band\b|\bthen\b) (?:and |then |now |first |please |also |so )*(?:tell me (?!if|whether|when)|what(?:'s| is| are| was)|who(?:'s| is| was)|how (?:many|much|tall|old|do|does|can|far)|why (?:is|are|do|does)|write (?:me )?(?:an?|the)\b|explain (?:what|how|why|the|to)|translate (?:this|the)|summari[sz]e (?:this|the)|give me (?:an?|the)\b|describe (?:the|an?)\b|list (?:the|some|all the)\b)",
    r"[，,：:；;]\s*(?:然后|现在|请|先|并)*(?:介绍|告诉我|翻译(?:一下|这)|解释一下|帮我|写一|推荐|分析一下|总结一下)",
)
