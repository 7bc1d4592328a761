"""Phrases by which people set a rule for a whole conversation, limit one to a single task, or take one back."""

import regex

_F = regex.IGNORECASE | regex.VERSION1


def _any(*patterns):
    return regex.compile("|".join(f"(?:{p})" for p in patterns), _F)


_REPLY = r"(?:responses?|repl(?:y|ies)|answers?|messages?|outputs?|turns?|explanations?|suggestions?)"
_TALK = r"(?:conversations?|chats?|discussions?|sessions?|dialogues?|threads?|talks?|exchanges?|quiz)"
_LATER = r"(?:future|upcoming|subsequent|following|later|next|further|coming|other|remaining)"
_DO = (
    r"(?:answer|reply|respond|write|speak|talk|use|end|finish|close|conclude|begin|start|open|keep|limit|restrict|avoid|include|add|"
    r"append|prefix|put|give|call|address|treat|stick|stop|quit|don'?t|don’t|do not|make|format|cite|mention|explain|refer|greet|sign|"
    r"number|skip|leave|omit|refrain|translate|assume|pretend|act|behave|imagine|remember|correct|wait|ask|convert|show|provide|list|"
    r"summari[sz]e|be|say|tell|sound|spell|wrap|drop|say|offer|warn|highlight|capitali[sz]e|express|state|hold|follow|apply|adopt|"
    r"consider|remind|check|suggest|rate|quote|repeat|insert|mark|return|phrase|word|round|think|speak|stay|remain|only|just|simply)"
)
_PLEASE = r"(?:(?:please|pls|kindly|also|and|but|so|then|ok(?:ay)?|now|note|hey|hi|hello|oh|remember|important|one (?:more )?thing|by the way|btw|first|finally)[\s,:;.!-]+)*"

# Words that spread a rule over every reply to come.
SCOPE = _any(
    r"\b(?:starting )?from (?:now|here|this (?:point|moment|message|turn)|today|then)\b(?: on(?:wards?)?| forward| out| in)?",
    r"\bnow on(?:wards?)?\b",
    r"\bgoing forward\b",
    r"\b(?:starting|beginning) (?:right )?(?:now|today|with (?:this|the next|your next))\b",
    r"\b(?:all|every|each|any)(?: of)? my (?:future |next )?(?:questions?|prompts?|requests?|messages?)\b",
    r"\bhence(?:forth|forward)\b",
    r"\bhereafter\b",
    r"\bfrom here on\b",
    r"\bafter this\b",
    r"\bfor later\b",
    r"\bin (?:the )?future\b",
    rf"\b(?:all|every|each|any|none)(?: single)?(?: one)?(?: of)?(?: (?:your|the|my|our|these))?(?: {_LATER})? {_REPLY}\b",
    rf"\bno {_REPLY} of yours\b",
    rf"\b(?:your|my|our|the|in|for) (?!following){_LATER} (?:{_REPLY}|questions|prompts|requests|{_TALK})\b",
    rf"\b(?:all|every|each|any)(?: of)?(?: (?:your|the|my|our))?(?: (?!following){_LATER}) (?:{_REPLY}|questions?|prompts?|requests?|{_TALK})\b",
    rf"\ball (?:of )?(?:my |your |the )?following (?:{_REPLY}|questions|prompts|{_TALK})\b(?! below)",
    r"\b(?:all|every|each) of (?:my|your) (?:questions?|prompts?|requests?)\b",
    rf"\b(?:in|for|throughout|during|across|within|of|until the end of|over) (?:this|our|the|all|all the|all of our|the (?:whole|entire)|this (?:whole|entire)|the (?:rest|remainder) of (?:this|our|the))(?: {_LATER})? {_TALK}\b",
    r"\b(?:the )?(?:rest|remainder) of (?:this|our|the) (?:conversation|chat|discussion|session|dialogue|thread|talk|time)\b",
    rf"\bthroughout (?:our |this |the )?{_TALK}\b",
    r"\bthroughout\W*$",
    r"\bas of now\b",
    r"\bmoving forward\b",
    r"\bwhile we (?:chat|talk|speak|are)\b",
    r"\b(?:words|language|terms|english) with me\b",
    r"\bany \w+ (?:that )?you (?:give|write|send|show|make|suggest|tell|produce)\b",
    r"\bas long as (?:we|I)\b",
    r"\bas we (?:keep|go|continue|talk|chat)\b",
    r"\b(?:until|till|unless) (?:I|we|the end|told|otherwise|further notice)\b",
    r"\bwhenever\b(?! (?:possible|necessary|needed|appropriate|applicable))",
    r"\b(?:every|each|any) ?time\b",
    r"\bif (?:you(?:'re|’re| are)|I(?:'m|’m| am)?|you) ever\b",
    r"\b(?:no matter|regardless of) (?:what|how|which|whether|the)\b",
    r"\bwhatever (?:I|the|we)\b",
    r"\b(?:everything|anything|whatever) (?:that )?(?:you|I|we)\b(?! (?:previously|have|had|instructed|said|discussed|told|just|wrote))",
    r"\bin every\b.{0,60}\byou\b",
    r"\bwhen(?:ever)? (?:you(?: are|'re)? )?(?:talk|speak|writ|reply|respond|answer|chat)(?:ing|ying)? (?:to |with )?me\b",
    r"\bto me today\b",
    r"\b(?:brief|short|formal|polite|simple|casual|concise|friendly) with me\b",
    r"\bat all times\b",
    r"\bin each\b.{0,30}\byou\b",
    r"\bany of (?:your|the)\b",
)
# Weaker words: they need an imperative right there.
STEADY = _any(
    rf"^{_PLEASE}(?:always|never|consistently)\b[ ,]+(?:\w+ ){{0,1}}?{_DO}\b",
    rf"^{_PLEASE}(?:you|we) (?:must|should|will|shall|may|can) (?:always|never|only ever)\b",
    rf"^{_PLEASE}{_DO}\b.{{0,120}}\b(?:always|ever|every ?time|permanently|consistently)\b[.! ]*$",
    rf"^{_PLEASE}I (?:always|never|only) (?:want|need|read|speak|use|like|accept)\b",
    r"^always in \w+",
    rf"^{_PLEASE}I(?:'d|’d| would)? (?:want|need|like) you to (?:always|never|only)\b",
    rf"^{_PLEASE}(?:don(?:'|’)t|do not) ever\b",
    r"^your (?:answers|replies|responses|messages) (?:should|must|need to|have to) (?:all|always|only|never)\b",
)
# The sentence tells the assistant what to do.
DIRECTIVE = _any(
    rf"(?:^|[,;:–—-] ?|\b(?:and|so|then|but|please|also|just|to|not) ){_PLEASE}(?:always |never |only |just )?{_DO}\b",
    r"\byou(?:r \w+(?: \w+)?)? (?:must|should|will|shall|can(?:not)?|could|may|might|are to|are going to|need(?: to)?|have to|had better|ought|only|always|never|kept|used|stuck|wrote|gave|spoke)\b",
    r"\byou(?:'ll|’ll)\b",
    r"\byou(?:'re|’re| are) (?:an?|my|the)\b",
    r"\b(?:whenever|every ?time|each time|if|when|while) (?:you|we)\b",
    rf"\b(?:on|forward|henceforth|onwards?),? (?:please )?{_DO}\b",
    rf"\b{_REPLY}(?: of yours)? (?:\w+ )?(?:must|should|shall|may|need(?:s)?|are|is|has|have|comes?|be|can(?:not)?|will|ought)\b",
    r"\bI(?:'d| would|’d)? (?:want|need|prefer|expect|like|rather|wish|appreciate|insist|demand|find|take|only)\b",
    r"\bI don(?:'|’)t (?:want|like|need)\b",
    r"\b(?:it|that)(?:'d| would|’d) be (?:great|nice|good|better|helpful|lovely|best)\b",
    r"(?:^|[,;:] ?|\bso )no \w+",
    r"\blet(?:'|’)?s\b",
    r"\b(?:can|could|would|will) you\b",
    r"\bshould be in\b",
    r"^(?:all|every|each|any|my|your)\b.{0,90}\b(?:must|should|shall|need|are to|has to|have to)\b",
)
# Set up by their very words, without any scope.
STANDING = _any(
    rf"^{_PLEASE}(?:you (?:can|may|must|should|will|are to|have to) )?(?:call|address|refer to|greet|name) me (?!an? |back|when|later|tomorrow|on |at )(?:as |by |with )?\S",
    r"\b(?:please|and|you (?:can|may|should|must)) (?:call|address|refer to|greet) me (?:as |by |only )?\S",
    rf"^{_PLEASE}(?:treat|consider) me (?:as|like)\b",
    rf"^{_PLEASE}(?:I(?:'ll| will|’ll) call you|your (?:new )?name is)\b",
    rf"^{_PLEASE}(?:think of yourself as|consider yourself)\b.{{0,80}}\b(?:today|now|tutor|teacher|coach|assistant|partner)\b",
    r"\blet(?:'|’)?s (?:set|agree|make|have|establish) (?:on )?(?:a |the |this |one |that )?(?:few )?(?:ground |house |basic )?(?:rules?\b|you(?:'ll| will)\b|that (?:you|your)\b)",
    r"\b(?:I find|I hate|I dislike|I can(?:'|’)t stand) (?:\w+ ){1,4}(?:distracting|annoying|confusing|hard to read|unreadable)\b",
    r"\bjust so you know\b.{0,20}(?:later|future)",
    r"\b(?:screen reader|dyslexi\w+|colou?r-?blind|hard of hearing|visually impaired)\b.{0,120}\b(?:please|don(?:'|’)t|avoid|no|keep|use)\b",
    rf"^{_PLEASE}(?:stop|quit) (?:using|adding|ending|starting|writing|apologi[sz]ing|saying|giving|including|calling)\b",
    rf"^{_PLEASE}(?:only|just) (?:answer|reply|respond|speak) (?:as|in|with)\b.{{0,60}}$",
    rf"^{_PLEASE}I(?:'d|’d| would) (?:rather|prefer(?: it)?(?: if)?) (?:that )?you\b.{{0,60}}\bme\b",
    r"^(?:one thing )?before we (?:begin|start)\b.{0,120}\b(?:no|don't|please|only|so)\b",
    r"\bexplain all (?:the |of the |your )?answers\b",
    r"\byou must only (?:respond|reply|answer)\b",
    r"\beach time\b[,]? (?:wait|give|ask|tell|show|say)\b",
    r"\byou are given one \w+ (?:at|in|per|for) each turn\b",
    r"\b(?:at|in) each turn\b.{0,200}\byou(?:r|u)? (?:task|should|must|will|only)",
)
# One task only: such words undo the others.
ONCE = _any(
    r"\b(?:for|in) (?:just |only )?this (?:one |single |next |last )?(?:answer|reply|response|message|question|time|one|turn|task)(?: only| alone)?\b(?! (?:conversation|chat))",
    r"\b(?:just|only) (?:this|that) (?:once|one|time)\b",
    r"\bthis (?:one )?time (?:only|around)\b",
    r"\b(?:your|the|this|in an?) (?:entire|whole|complete) (?:response|reply|answer|output|letter|essay|story|poem|text|message|article|post|email)\b",
    r"仅(?:限)?(?:这|本)(?:一)?(?:次|条|个回答)|只(?:有|是|限|在)?这(?:一)?次|这次(?:回答)?(?:例外|而已|就)|下不为例|就这一次|本次回答(?:只|仅)?",
)
# Work of its own: "each answer" then speaks of what is to be made, not of the replies.
TASK = _any(
    rf"^{_PLEASE}(?:can you |could you |would you |I want you to |I need you to |help me )?(?:generate|create|write|draft|compose|make (?:me )?(?:an?|the|some|up)|give me|design|develop|produce|list|come up with|rewrite|summari[sz]e|translate|build|complete|solve|evaluate|critique|classify|answer the|invent|plan|suggest|describe|explain)\b",
)
QUESTION = _any(
    rf"^{_PLEASE}(?:who|what|when|where|why|how|which|whose|is|are|was|were|do|does|did|has|have|had|can|could|would|will|should|if|in what|tell me|explain|describe|give me|write|list|name|translate|summari[sz]e|compare|show me|help me|draft|create|generate|find|solve|calculate|recommend|suggest)\b"
)

ZH_SCOPE = _any(
    r"从(?:现在|这|此|今|下)\S{0,4}?(?:开始|起|往后)",
    r"今后|以后|往后|之后|此后|后面|接下来|后续|下面的(?:对话|聊天|回答|回复)|从今(?:天|以后)|将来",
    r"每(?:一)?(?:次|个|条|句|段)?(?:的)?(?:回答|回复|答复|消息|答案|话|都)|每次|每当|每回",
    r"(?:所有|全部|任何)(?:的)?(?:回答|回复|答复|消息|答案|问题|对话|日期|代码)",
    r"一律|始终|一直|永远|总是|时刻|全程",
    r"(?:整个|整场|全部|本次|这次|这场|本场|我们(?:之后|接下来)?的?)(?:的)?(?:对话|聊天|会话|谈话|交流)(?:过程)?(?:中|里|期间)?",
    r"(?:无论|不管|不论)(?:我|你|什么|问|怎)\S*",
    r"直到我\S+",
    r"凡是|只要我|只要是",
    r"(?:对话|聊天)(?:中|里|期间)",
)
ZH_DIRECTIVE = _any(
    r"请|务必|必须|不要|不得|不许|不准|不用|不能|别(?!人|的)|禁止|避免|要(?!求|是|点)|都(?:用|以|得|要|请|别|不|写|加|给|是|尽量|必|只)",
    r"用\S{1,12}(?:回答|回复|写|说|交流|来|语)",
    r"叫我|称呼|扮演|记住|控制在|使用|写成|加上|以\S{1,14}(?:开头|开始|结尾|结束)|回答我|回复我|只(?:能|用|回|准|需)|保持|尽量|你的?(?:名字|身份|角色)?(?:叫|就?是)|先(?:说|写|给|用|问|列)",
)
ZH_STANDING = _any(
    r"^(?:请|你|你就|你可以|以后|就|麻烦)?(?:叫|称呼|喊|称)我(?:为|作|做|叫)?[^?？吗呢起做去来]{1,20}[。!！]?$",
    r"^(?:请)?(?:别|不要|停止)再\S+了?[。!！]?$",
    r"^我(?:喜欢|不喜欢|讨厌|希望你|更喜欢)\S{0,20}(?:回答|回复|语气|表情|格式|说话)",
)
ZH_TASK = _any(
    r"这(?:篇|首|段|个|道|封|份)(?:文章|作文|诗|文|题|故事|信|回答|邮件|报告)?(?:要|里|中|请|不)",
    r"^(?:请)?(?:帮我)?(?:写|翻译|总结|生成|创作|编|设计|列出|列举|解释|介绍|分析|给我|将|把)",
)

# Languages with a scope phrase that says it all; the second pattern is what a request looks like there.
OTHERS = [
    (
        _any(
            r"\b(?:à|a) partir de maintenant\b",
            r"\b(?:désormais|dorénavant|par la suite|à l['’]avenir)\b",
            r"\bdans (?:toutes|chacune de|tous|chaque)\b.{0,25}\b(?:réponses?|messages?)\b",
            r"\b(?:chaque|toutes tes|toutes vos) réponses?\b",
            r"\bpour (?:le reste|la suite) de (?:la|notre|cette) (?:conversation|discussion)\b",
            r"\b(?:réponds|répondez|écris|parle|utilise)\w*(?:-\w+)? toujours\b",
            r"\bappelle(?:z)?-moi\b",
            r"\bne \w+ (?:plus )?jamais\b",
        ),
        _any(
            r"\b\w+(?:s|ez|e)[- ](?:moi|nous)\b|\b(?:réponds|répondez|écris|écrivez|utilise|commence|termine|finis|ajoute|évite|parle|donne|garde|limite|doi\w+|merci de|n'utilise|ne \w+|tutoie|vouvoie|mets|cite|sois|appelle|fais|inclus|conclus|adresse)\w*"
        ),
    ),
    (
        _any(
            r"\bab (?:jetzt|sofort|nun|heute)\b",
            r"\bvon (?:jetzt|nun|heute|hier) an\b",
            r"\b(?:künftig|zukünftig|fortan|in zukunft)\b",
            r"\b(?:in )?(?:allen|jeder|jede|alle|sämtliche\w*)\b.{0,30}\b(?:antwort\w*|nachricht\w*)\b",
            r"\b(?:antworte|schreib\w*|verwende|benutze|sprich|nenn\w*) (?:mir |mich )?(?:bitte )?(?:immer|stets|nie|niemals)\b",
            r"\b(?:während|für den rest) (?:unser\w*|dies\w*|des) \w*(?:gespräch|chat|unterhaltung)\w*",
            r"\bnenn(?:e)? mich\b",
        ),
        _any(
            r"\bbitte\b|\b(?:antworte|schreib|verwend|benutz|sprich|halte|beginn|beend|füg|vermeid|nenn|duz|siez|sollen|sollst|musst|müssen|darf|gib|erklär|nutze?|formulier|schließ|setz|lass|mach|zitier|sei\b)\w*"
        ),
    ),
    (
        _any(
            r"\b(?:de|desde|a partir de) (?:ahora|aquí|hoy|este momento)\b(?: en adelante)?",
            r"\ben adelante\b",
            r"\b(?:todas|cada una de|en todas|en cada)\b.{0,18}\brespuestas?\b",
            r"\b(?:responde|contesta|escribe|habla|usa)\w* siempre\b|\bsiempre (?:responde|contesta|escribe|habla|usa|respónd\w*|contést\w*)",
            r"\bll[aá]mame\b",
            r"\b(?:durante|en) (?:toda )?(?:esta|nuestra) (?:conversación|charla)\b",
            r"\bnunca (?:uses|escribas|respondas|empieces|termines)\b",
        ),
        _any(
            r"\b(?:debe|deben|tiene|responde|contesta|escribe|usa|utiliza|habla|termina|empieza|comienza|evita|añade|agrega|no uses|llám|llama|quiero|por favor|mantén|limita|trát|incluye|cita|dame|uses|escribas|acaba|pon|explica)\w*"
        ),
    ),
    (
        _any(
            r"\bd['’]ora in (?:poi|avanti)\b",
            r"\bda (?:ora|adesso|oggi|questo momento) in (?:poi|avanti)\b",
            r"\b(?:ogni|tutte le|in ogni|in tutte le)\b.{0,18}\brispost[ae]\b",
            r"\b(?:rispondi|scrivi|usa|parla)\w* sempre\b|\bsempre in \w+",
            r"\bchiamami\b",
            r"\bper (?:tutta|il resto del)la? \w*conversazione\b",
        ),
        _any(
            r"\b(?:rispond|scriv|usa|inizia|comincia|termin|finisci|evita|aggiung|parla|chiama|dammi|dovra|devono|deve|devi|mantieni|limita|non|concludi|metti|cita|fai|sii|per favore|includi)\w*"
        ),
    ),
    (
        _any(
            r"\b(?:de|a partir de) agora\b(?: em diante)?",
            r"\bdaqui (?:em diante|para a frente|pra frente)\b",
            r"\b(?:todas as|cada|em todas as|em cada)\b.{0,18}\brespostas?\b",
            r"\b(?:responda|escreva|use|fale|responde)\w* sempre\b|\bsempre (?:responda|escreva|use|fale)\w*",
            r"\bme chame? de\b|\bchama-me\b",
        ),
        _any(
            r"\b(?:respond|escrev|use|usa|comec|termin|evit|adicion|fale|fala|deve|devem|quero|por favor|mantenha|limite|trate|não|chame|inclu|cite)\w*"
        ),
    ),
    (
        _any(
            r"\bотныне\b|\bс (?:этого момента|этой минуты|сегодняшнего дня)\b|\bвпредь\b|\bв дальнейшем\b|\b(?:во всех|в каждом|каждый|все|в твоих|в ваших)\b.{0,25}\bответ\w*|\bвсегда (?:отвечай|пиши|говори|используй|отвечайте|пишите)|\bникогда не (?:используй|пиши|употребляй)|\b(?:зови|называй)(?:те)? меня\b|\bдо конца (?:разговора|беседы|диалога)\b"
        ),
        _any(
            r"\b(?:отвеча|пиши|говори|использ|начина|заканчива|добавля|избега|должн|пожалуйста|обраща|называ|зови|не |будь|ограничи|заверша|давай|приводи)\w*"
        ),
    ),
    (
        _any(
            r"これから(?:は|の|ずっと|先)?|今後(?:は|の)?|以降|これ以降|(?:すべて|全て|全部|毎回|各)の?(?:返事|回答|返信|答え|応答|メッセージ)|毎回|いつも|(?:この|私たちの)(?:会話|チャット)(?:中|では|の間|を通して)|必ず毎|ずっと"
        ),
        _any(r"ください|下さい|お願い|してね|して欲しい|してほしい|すること|しないで|しろ|せよ|呼んで|でいて|ように"),
    ),
    (
        _any(
            r"앞으로(?!의)|이제부터|지금부터|이후로?|(?:모든|매|각) ?(?:답변|대답|답|응답|메시지)|매번|항상|언제나|(?:이|우리) ?(?:대화|채팅)(?:에서|동안| 내내| 전체)|계속해서"
        ),
        _any(
            r"주세요|주십시오|해 ?줘|하세요|하십시오|해라|마세요|말아|말 것|할 것|불러|바랍니다|부탁|써 ?줘|달아|말해"
        ),
    ),
]

TRANSLATE = _any(r"^(?:tradu\w+|übersetze?\w*|переведи\w*)\b", r"翻訳|번역")

# Kinds of rule, told by what they are about.
_LANGUAGES = r"(?:english|french|german|spanish|italian|portuguese|russian|chinese|mandarin|japanese|korean|arabic|hindi|latin|dutch|polish|turkish|swedish|greek|punjabi|bulgarian|hebrew|vietnamese|thai|ukrainian|français|deutsch|español|italiano|英文|英语|中文|汉语|法语|德语|日语|日文|韩语|俄语|西班牙语|繁体|简体|文言文|粤语|日本語|英語|한국어|영어)"
KINDS = {
    "address": _any(
        r"\b(?:call|address|greet|refer to|treat|name) me\b|\bmy name is\b|叫我|称呼|喊我|\bnenn\w* mich\b|\bappelle\w*-moi\b|\bll[aá]mame\b|\bduz|\bsiez|\btutoie|\bvouvoie|呼んで|불러"
    ),
    "opening": _any(
        r"\b(?:begin|start|open|preface|prefix)(?:s|ning|ing)?\b(?! from)|\bgreet\b|开头|起首|以\S+开始|\bcommence|\bbeginn|\bempieza|\binizia|\bначина|で始め|시작"
    ),
    "ending": _any(
        r"\b(?:end|ends|ending|finish|finishing|close|closing|conclude|sign off)\b|结尾|末尾|最后加|\btermine|\bbeende|\btermina|\bfinis|\bзаканчива|で終わ|끝"
    ),
    "length": _any(
        r"\b(?:words?|sentences?|characters?|paragraphs?|lines?|short|shorter|brief|briefly|concise|long|longer|length|detailed)\b|字(?!母)|句话|一句|简短|简洁|长篇|长度|两句|\bmots\b|\bphrases?\b|\bwörter|\bsätze?\b|\bpalabras\b|\bparole\b|\bслов|文字以内|一文|한 문장|문장으로"
    ),
    "language": _any(
        rf"\b(?:in|into|use|speak|only|using|to|auf|en|in) (?:\w+ )?{_LANGUAGES}\b|{_LANGUAGES}(?:回|写|作|说|交流|language|로|で)|用{_LANGUAGES}|\b{_LANGUAGES} (?:only|language|spelling)\b|语言|\blanguage\b"
    ),
    "case": _any(r"\b(?:upper|lower)[- ]?case\b|\bcapital(?:s| letters|ized)?\b|\blower letters\b|大写|小写"),
    "format": _any(
        r"\b(?:json|xml|yaml|html|markdown|bullet(?:s| points?)?|table|tables|list|lists|numbered|plain text|prose|code block)\b|列表|分点|表格|格式|要点"
    ),
    "persona": _any(
        r"\b(?:act as|act like|pretend|behave (?:as|like)|role-?play|you are (?:a|an|my)\b|speak like|talk like|respond as|answer as|think of yourself)|扮演|假装|当作|角色"
    ),
    "tone": _any(
        r"\b(?:tone|formal|informal|polite|friendly|casual|humou?r|funny|sarcastic|cheerful|register)\b|语气|敬语|礼貌|正式|幽默|敬語"
    ),
}
# Taking a rule back.
CANCEL = _any(
    rf"^{_PLEASE}(?:you (?:can|may|should|must) )?(?:stop|quit|cease)\b(?! (?:sign|words?)\b)",
    r"\b(?:you )?(?:no longer|don(?:'|’)t) (?:have|need) to\b.{0,80}\b(?:any ?more|any longer|now)\b",
    r"\b(?:you )?no longer (?:have|need) to\b",
    r"\byou (?:don(?:'|’)t|do not) (?:have|need) to\b.{0,80}\b(?:any ?more|any longer|now)\b",
    rf"^{_PLEASE}(?:don(?:'|’)t|do not|never)\b.{{0,100}}\b(?:any ?more|any longer)\b",
    rf"^{_PLEASE}(?:forget|ignore|cancel|drop|remove|undo|lift|disregard|delete|scrap|revoke)\b.{{0,60}}\b(?:rules?|instructions?|constraints?|requirements?|limits?|restrictions?|that you|what I said about|about)\b",
    r"\bback to normal\b|\bas (?:you did )?before\b.{0,20}\bnormal",
    r"(?:不用|不必|不需要|无需|不要|别|停止|不再)(?:再|继续)|(?:取消|撤销|忘掉|忽略|删除|解除|忘记)\S{0,12}(?:规则|要求|限制|指令|设定|约定)|(?:恢复|回到)正常",
)
CANCEL_ALL = _any(
    r"\b(?:all|every|any|my)(?: of)?(?: (?:the|my|your|previous|earlier|these|other))* (?:rules?|instructions?|constraints?|restrictions?)\b|(?:所有|全部|之前)的?\S{0,3}(?:规则|要求|限制|指令)"
)
