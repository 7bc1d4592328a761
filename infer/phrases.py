"""Phrases by which people set a rule for a whole conversation, or limit one to a single task, language by language."""

import regex

_F = regex.IGNORECASE | regex.VERSION1


def any_of(*patterns):
    return regex.compile("|".join(f"(?:{p})" for p in patterns), _F)


_REPLY = r"(?:responses?|repl(?:y|ies)|answers?|messages?|outputs?|turns?|explanations?|suggestions?)"
_TALK = r"(?:conversations?|chats?|discussions?|sessions?|dialogues?|threads?|talks?|exchanges?|quiz)"
_REPLIES = r"(?:responses|replies|answers|messages|outputs|explanations)"
_SAY = r"(?:give|write|send|show|make|suggest|tell|produce|mention|recommend|say|use|quote|create|offer|cite|name|propose|share|post)"
_LATER = r"(?:future|upcoming|subsequent|following|later|next|further|coming|other|remaining)"
DO = (
    r"(?:answer|reply|respond|write|speak|talk|use|end|finish|close|conclude|begin|start|open|keep|limit|restrict|avoid|include|add|"
    r"append|prefix|put|give|call|address|treat|stick|stop|quit|don'?t|do not|make|format|cite|mention|explain|refer|greet|sign|"
    r"number|skip|leave|omit|refrain|translate|assume|pretend|act|behave|imagine|remember|correct|wait|ask|convert|show|provide|list|"
    r"summari[sz]e|be|say|tell|sound|spell|wrap|drop|say|offer|warn|highlight|capitali[sz]e|express|state|hold|follow|apply|adopt|"
    r"consider|remind|check|double-check|point|fix|choose|pick|fill|take|continue|try|ensure|focus|replace|switch|change|turn|set|go|adjust|adapt|tailor|suggest|rate|quote|repeat|insert|mark|return|phrase|word|round|think|speak|stay|remain|only|just|simply)"
)
PLEASE = r"(?:(?:please|pls|kindly|just|simply|actually|instead|yes|great|perfect|well|also|and|but|so|then|ok(?:ay)?|now|note|hey|hi|hello|oh|remember|important|one (?:more )?thing|by the way|btw|first|finally)[\s,:;.!-]+)*"

# Words that spread a rule over every reply to come.
SCOPE = any_of(
    r"\b(?:starting )?from (?:now|here|this (?:point|moment|message|turn)|today|then)\b(?: on(?:wards?)?| forward| out| in)?",
    r"\bnow on(?:wards?)?\b",
    r"\bgoing forward\b",
    r"\b(?:starting|beginning) (?:right )?(?:now|today|with (?:this|the next|your next))\b",
    r"\b(?:all|every|each|any)(?: of)? my (?:future |next )?(?:questions?|prompts?|requests?|messages?)\b",
    r"\bhence(?:forth|forwards?)\b",
    r"\bfrom here[.! ]*$",
    r"\bfor (?:every|each|any|all) .{1,40}? (?:that )?I (?:name|give|mention|ask|send|tell|paste|say|list|bring|type|write|share|post)\b",
    r"\b(?:whatever|whichever|any) (?:topic|subject|question|theme|thing|language)s? (?:that )?(?:comes? up|we (?:discuss|talk)|I (?:ask|raise|bring))\b",
    r"\b(?:every|each) (?:single )?thing (?:that )?you\b",
    rf"\b(?:in|to|with) (?:every|each|all)(?: single)?(?: (?:your|of your))? (?:{_REPLY})\b",
    r"\bhereafter\b",
    r"\bfrom here on\b",
    r"\bafter this\b",
    r"^(?:\W*(?:and|so|but|please|also)\b)*\W*in (?:the )?future\b(?= ?[,:]| please)|\bin future\b",
    r"\bfor (?:future reference|next time)\b",
    r"\bfrom (?:your|the|my|this) (?:very )?next (?:\w+)\b|\b(?:as|starting|beginning) (?:of|from|with) (?:your|the|my) next \w+",
    r"\bby default\b|\bas a (?:general |standing |house |fixed )?rule\b|\bmake it a (?:rule|habit)\b|\b(?:get into|make) (?:the|a) habit of\b",
    r"\b(?:until|till) (?:you(?:'re| are) told|you hear|our session)\b",
    r"\bper (?:answer|reply|response|message|turn)\b",
    rf"\b(?:any|every|each|all(?: of)?(?: the)?)(?: single)? (?:\w+ ){{1,3}}?(?:that |which )?you {_SAY}\b",
    rf"\b(?!any (?:further|other|remaining) )(?:all|every|each|any|none)(?: single)?(?: one)?(?: of)?(?: (?:your|the|my|our|these))?(?: {_LATER})? {_REPLY}\b",
    rf"\bno {_REPLY} of yours\b",
    rf"\b(?:your|my|our|the|in|for) (?!following){_LATER} (?:{_REPLY}|questions|prompts|requests|{_TALK})\b",
    rf"\b(?!any (?:further|other|remaining) )(?:all|every|each|any)(?: of)?(?: (?:your|the|my|our))?(?: (?!following){_LATER}) (?:{_REPLY}|questions?|prompts?|requests?|{_TALK})\b",
    rf"\ball (?:of )?(?:my |your |the )?following (?:{_REPLY}|questions|prompts|{_TALK})\b(?! below)",
    r"\b(?:all|every|each) of (?:my|your) (?:questions?|prompts?|requests?)\b",
    rf"(?<!\w(?:ed|aid|out) )\b(?:in|for|throughout|during|across|within|over) (?:this|our|all|all the|all (?:of )?our|(?:the|this|our) (?:whole|entire)|the (?:whole|entirety) of (?:this|our|the))(?: {_LATER})? {_TALK}\b",
    r"\b(?:everything|anything|all) (?:that |which )?(?:follows|comes (?:next|after|later))\b",
    rf"\b(?:this|our) (?:whole|entire) {_TALK}\b",
    rf"\b(?:at|in|to|on) (?:the )?(?:very )?(?:end|start|top|bottom|beginning|head|foot) of (?:every|each|all)(?: (?:one |single )?of)?(?: your)? {_REPLY}\b",
    rf"\b(?:end|course|duration|length|whole|entirety) of (?:this|our|the)(?: (?:whole|entire))? {_TALK}\b",
    r"\b(?:the )?(?:rest|remainder) of (?:this|our|the) (?:conversation|chat|discussion|session|dialogue|thread|talk|time)\b",
    rf"\bthroughout (?:our |this |the )?{_TALK}\b",
    r"\bthroughout\W*$",
    r"\bas of (?:now|today|this (?:moment|message|point))\b",
    r"\bmoving forward\b",
    r"\b(?:while|when(?:ever)?) we (?:chat|talk|speak|are (?:chatting|talking|speaking))\b",
    rf"^{PLEASE}(?:[^,]{{1,80}}, (?:so |and )?(?:please )?)?(?:use|speak|keep|be|stay|stick|take)\b.{{0,60}} with me\b[.! ]*$",
    r"\bas long as (?:we|I)\b",
    r"\bas we (?:keep|go|continue|talk|chat)\b",
    r"\b(?:until|till|unless) (?:I|we|the end|told|otherwise|further notice)\b",
    r"\bwhenever\b(?! (?:possible|necessary|needed|appropriate|applicable))",
    r"\b(?:every|each|any) ?time\b",
    r"\bif (?:you(?:'re| are)|I(?:'m| am)?|you) ever\b",
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
STEADY = any_of(
    rf"^{PLEASE}(?:always|never|consistently)\b[ ,]+(?:\w+ ){{0,1}}?{DO}\b",
    rf"^{PLEASE}(?:you|we) (?:must|should|will|shall|may|can) (?:always|never|only ever|no longer)\b",
    rf"^{PLEASE}{DO}\b.{{0,120}}\b(?:always|ever|every ?time|permanently|consistently)\b[.! ]*$",
    rf"^{PLEASE}I (?:always|never|only) (?:want|need|read|speak|use|like|accept)\b",
    r"^always in \w+",
    rf"^{PLEASE}(?:always|never) (?!.*\b(?:is|are|was|were|has|had)\b)[a-z-]+ (?:your|my|me|the|an?|in|with|to|at|out|for|what|which|how|every|any|both|when|as)\b",
    rf"^{PLEASE}I(?:'d| would)? (?:want|need|like) you to (?:always|never|only)\b",
    rf"^{PLEASE}(?:don't|do not) ever\b",
    r"^your (?:answers|replies|responses|messages) (?:should|must|need to|have to) (?:all|always|only|never)\b",
)
# The sentence tells the assistant what to do.
DIRECTIVE = any_of(
    rf"(?:^|[,;:–—-] ?|\b(?:and|so|then|but|please|also|just|to|not) ){PLEASE}(?:always |never |only |just )?{DO}\b",
    r"\byou(?:r \w+(?: \w+)?)? (?:must|should|will|shall|can(?:not)?|could|may|might|are to|are going to|need(?: to)?|have to|had better|ought|only|always|never|kept|used|stuck|wrote|gave|spoke)\b",
    r"\byou'll\b",
    r"\byou(?:'re| are) (?:an?|my|the)\b",
    r"\b(?:whenever|every ?time|each time|if|when|while) (?:you|we)\b",
    rf"\b(?:on|forward|henceforth|onwards?),? (?:please )?{DO}\b",
    rf"\b{_REPLY}(?: of yours)? (?:\w+ )?(?:must|should|shall|may|need(?:s)?|are|is|has|have|comes?|be|can(?:not)?|will|ought)\b",
    r"\bI(?:'d| would)? (?:want|need|prefer|expect|like|rather|wish|appreciate|insist|demand|find|take|only)\b",
    r"\bI don't (?:want|like|need)\b",
    r"\b(?:it|that)(?:'d| would) be (?:great|nice|good|better|helpful|lovely|best)\b",
    r"(?:^|[,;:] ?|\bso )(?:no|nothing|only|not) \w+",
    r"\binstead of\b.{0,60}\buse\b",
    r"\bwould you mind\b",
    r"\b(?:at most|no more than|maximum|exactly|at least)\b",
    r"\blet'?s\b",
    r"\b(?:can|could|would|will) you\b",
    r"\bshould be\b",
    r"^(?:all|every|each|any|my|your)\b.{0,90}\b(?:must|should|shall|need|are to|has to|have to)\b",
)
# Set up by their very words, without any scope.
STANDING = any_of(
    rf"^{PLEASE}(?:you (?:can|may|must|should|will|are to|have to) )?(?:call|address|refer to|greet|name) me (?!an? |back|when|later|tomorrow|on |at )(?:as |by |with )?\S",
    r"\b(?:please|and|you (?:can|may|should|must)) (?:call|address|refer to|greet) me (?:as |by |only )?\S",
    rf"^{PLEASE}(?:treat|consider) me (?:as|like)\b",
    rf"^{PLEASE}(?:speak|talk|write) to me (?:only |just )?(?:like|as|in)\b",
    rf"(?:^{PLEASE}|[,;] |\band )(?:if|when|once|as soon as) (?:I|we) (?:write|type|say|ask|send|paste|use|speak|misspell|mention|enter|post|share|switch|greet|get|make)\b[^?]{{0,100}}?(?:,|\s\s)\s*(?:please |just |then |you (?:should|must|will|can|may) |only |always |never )*{DO}\b",
    rf"^{PLEASE}I(?:'d| would)(?: really)? (?:appreciate|love|prefer|like|be (?:happy|grateful))(?: it)? if you(?: could| would)? (?:always|never)\b",
    r"\bI (?:really |do )?(?:like|love|hate|dislike|prefer|appreciate|don't like|can't stand) (?:it )?(?:when|if|that) you\b",
    rf"^{PLEASE}(?:be|you(?:'re| are| will be|'ll be)(?: going to be)?) (?:my|our)\b.{{0,60}}\b(?:today|tonight|now|from now|until)\b",
    rf"^{PLEASE}(?:{_REPLIES}) (?:longer|shorter|over|under|above|below|without|with|in|that)\b.{{0,80}}\b(?:are|is|will be) (?:not|never|un\w+|forbidden|banned)\b",
    rf"^{PLEASE}(?:(?:set|here(?:'s| is)|new|house|ground|standing|one|another|my) )+(?:a |the |my |new )?rules?(?: for you)?\s*[:,–—-]",
    rf"^{PLEASE}when(?:ever)? [^,?]{{1,60}}, (?:please |you (?:should|must|will) )?(?:always|never) {DO}\b",
    rf"^{PLEASE}(?:I(?:'ll| will) call you|your (?:new )?name is)\b",
    rf"^{PLEASE}(?:think of yourself as|consider yourself)\b.{{0,80}}\b(?:today|now|tutor|teacher|coach|assistant|partner)\b",
    r"\blet'?s (?:set|agree|make|have|establish) (?:on )?(?:a |the |this |one |that )?(?:few )?(?:ground |house |basic )?(?:rules?\b|you(?:'ll| will)\b|that (?:you|your)\b)",
    r"\b(?:I find|I hate|I dislike|I can't stand) (?:\w+ ){1,4}(?:distracting|annoying|confusing|hard to read|unreadable)\b",
    r"\bjust so you know\b.{0,20}(?:later|future)",
    r"\b(?:screen reader|dyslexi\w+|colou?r-?blind|hard of hearing|visually impaired)\b.{0,120}\b(?:please|don't|avoid|no|keep|use)\b",
    rf"^{PLEASE}(?:stop|quit) (?:using|adding|ending|starting|writing|apologi[sz]ing|saying|giving|including|calling)\b",
    rf"^{PLEASE}(?:only|just) (?:answer|reply|respond|speak) (?:as|in|with)\b.{{0,60}}$",
    rf"^{PLEASE}I(?:'d| would) (?:rather|prefer(?: it)?(?: if)?) (?:that )?you\b.{{0,60}}\bme\b",
    r"^(?:one thing )?before we (?:begin|start)\b.{0,120}\b(?:no|don't|please|only|so)\b",
    r"\bexplain all (?:the |of the |your )?answers\b",
    r"\byou must only (?:respond|reply|answer)\b",
    r"\beach time\b[,]? (?:wait|give|ask|tell|show|say)\b",
    r"\byou are given one \w+ (?:at|in|per|for) each turn\b",
    r"\b(?:at|in) each turn\b.{0,200}\byou(?:r|u)? (?:task|should|must|will|only)",
)
# They set a rule only where the message has nothing else to do.
LOOSE = any_of(
    rf"^{PLEASE}(?:begin|start|open|end|finish|close|conclude|keep|limit|restrict|prefix|sign|write|phrase|format|number|make|wrap|shorten|put)\b.{{0,60}}\b(?:your {_REPLIES}|yourself)\b",
    rf"^{PLEASE}(?:you (?:will|must|should|have to|need to) )?(?:keep|adjust|adapt|tailor|limit|restrict|shorten|simplify) (?:all )?your {_REPLIES}\b",
    rf"(?:^|[,;] |\b(?:so|and) ){PLEASE}(?:don't|do not|never|avoid|include|use|put|add|mention|leave|keep)\b.{{0,80}}\b(?:in|into|from|of|to|with) your {_REPLIES}\b",
    rf"(?:^|[,;] |\b(?:so|and) ){PLEASE}{DO}\b.{{0,100}}\b(?:when|before|after|while) (?:you )?(?:answer|reply|respond|replying)(?:ing)?\b",
    rf"^{PLEASE}(?:when|before|after|while) (?:you )?(?:answer|reply|respond|replying)(?:ing)?\b.{{0,60}}?,? (?:please |always |never )*{DO}\b",
    rf"^{PLEASE}I(?:'d| would)(?: really)? (?:appreciate|love|prefer|like)(?: it)? if you (?:(?:could |would )?(?:keep|use|stop|avoid|stick|not)|kept|used|stuck|stopped|avoided|spoke|answered|replied|didn't)\b",
    rf"^{PLEASE}(?:stop|quit) \w+ing\b(?! (?:this|the|it|that)\b)",
    rf"^{PLEASE}only \w+\b.{{0,60}}\b(?:when|if) I (?:ask|tell|say|request)\b",
    rf"^your {_REPLIES}\b.{{0,60}}\b(?:should|must|need to|have to|are to|may|can(?:not)?|are (?:too|always|way|so))\b",
    rf"^{PLEASE}keep (?:\w+ ){{0,2}}(?:{_REPLIES}|things|everything) (?:\w+ ){{0,2}}(?:short|brief|concise|simple|formal|informal|polite|light|clean|friendly|casual|under|to|below|free|in)\b",
    rf"^{PLEASE}(?:\w+[ -]){{1,4}}{_REPLIES}(?: only)?,? please\b|^{PLEASE}(?:\w+[ -]){{1,4}}{_REPLIES} only\b|^only (?:\w+[ -]){{1,3}}{_REPLIES}\b",
    rf"^{PLEASE}I(?:'d)? (?:only |just |really |would )?(?:want|need|prefer|like|expect) (?:(?!to\b|the\b|some\b|these\b)\w+ ){{1,4}}{_REPLIES}\b",
    rf"^{PLEASE}(?:speak|talk) (?:only |just )?(?:like|as|in|english|french|german|spanish|chinese)\b(?! (?:detail|depth|general))",
    rf"^{PLEASE}(?:no more|enough (?:with|of)(?: the| all| these)?|(?:there(?:'s| is) )?no need (?:to|for)) \w+",
    rf"^{PLEASE}you (?:don't|do not|needn't|need not)(?: (?:have|need) to)? (?:apologi[sz]e|explain|add|include|repeat|use|be|thank|greet|remind|warn|justify|restate|say)\b",
    rf"^{PLEASE}feel free to (?:be|use|swear|joke|skip|interrupt|correct|challenge|disagree|ask|tease|curse)\b",
    rf"^{PLEASE}let's (?:keep (?:it|things|everything|this|our)|stick to|only|not|always|use (?!the)|speak|talk (?:in|like)|stay|avoid)\b",
    rf"^{PLEASE}(?:remember|keep in mind|bear in mind|note|be aware|don't forget)(?: that)? (?:I|I'm|my)\b",
    r"^(?:hi[,!. ]+|hello[,!. ]+)?(?:I|I'm|I've|my|we|we're)\b(?!.*\b(?:this|these|following|above)\b).{3,120}(?:[,;:]|\b(?:so|therefore|hence)\b),? ?(?:so |therefore )?(?:please |pls |kindly )*(?:do not|don't|no|avoid|keep|skip|leave out|stick to|only|assume|use (?:only |very )?(?:simple|short|plain|easy|basic|large)|explain (?:things|everything))\b",
    r"^if you (?:don't|do not|can't|cannot|aren't|are not|are unsure|'re unsure|'re not)\b.{0,60}, ?(?:please |just |simply |then )*(?:say|reply|tell|answer|respond|admit|ask)\b",
)
# One task only: such words undo the others.
ONCE = any_of(
    r"\b(?:for|in) (?:just |only )?this (?:one |single |next |last )?(?:answer|reply|response|message|question|time|one|turn|task)(?: only| alone)?\b(?! (?:conversation|chat))",
    r"\b(?:just|only) (?:this|that) (?:once|one|time)\b",
    r"\bthis (?:one )?time (?:only|around)\b",
    r"\b(?:your|the|this|in an?) (?:entire|whole|complete) (?:response|reply|answer|output|letter|essay|story|poem|text|message|article|post|email)\b",
    r"仅(?:限)?(?:这|本)(?:一)?(?:次|条|个回答)|只(?:有|是|限|在)?这(?:一)?次|这次(?:回答)?(?:例外|而已|就)|下不为例|就这一次|本次回答(?:只|仅)?",
)
# Work of its own: "each answer" then speaks of what is to be made, not of the replies.
TASK = any_of(
    rf"(?:^|[:;] ){PLEASE}(?:can you |could you |would you |I want you to |I need you to |help me )?(?:generate|create|write|draft|compose|make (?:me )?(?:an?|the|some|up)|give me|design|develop|produce|list|come up with|rewrite|summari[sz]e|translate|build|complete|solve|evaluate|critique|classify|answer the|invent|plan|suggest|describe|explain|provide|critici[sz]e|compare|calculate|find|improve|edit|proofread|convert|paraphrase|outline|continue|expand|elaborate|analy[sz]e|identify|extract|rank|discuss|tell me (?:about|what|how|why|who|the|an?)|show me)\b",
)
QUESTION = any_of(
    rf"^{PLEASE}(?:who|what|when|where|why|how|which|whose|is|are|was|were|do|does|did|has|have|had|can|could|would|will|should|if|in what|tell me|explain|describe|give me|write|list|name|translate|summari[sz]e|compare|show me|help me|draft|create|generate|find|solve|calculate|recommend|suggest)\b"
)

# Somebody is told of; no rule is laid down.
TOLD = any_of(
    r"^(?:(?:and|so|then|but) )?(?!I\b|we\b|you\b|please\b)(?:[\w'-]+ ){1,4}?(?:said|says|swore|promised|declared|announced|told|vowed|decided|insisted|claimed|shouted|whispered|ordered)\b(?! (?:by )?you\b)",
    r"^(?:他|她|他们|她们|老师|老板|妈妈|爸爸|有人|国王)\S{0,6}(?:说|告诉|宣布|发誓|决定|要求)",
)
# The sentence looks back on what was said.
BACK = any_of(
    r"^\W*(?:\w+[.,!] )?(?:please |now |can you |could you )*(?:re-?)?(?:review|summari[sz]e|sum up|list|count|label|extract|identify|analy[sz]e|read|check|consider|collect|combine|compile)\b",
    r"\b(?:thank(?:s| you)|based on|considering|according to|summary of|so far|above|earlier|previous(?:ly)?)\b",
    r"\b(?:discussed|sent|said|generated|provided|covered|mentioned|talked about|asked|shared|gave|given|written|wrote) (?:\w+ ){0,2}in (?:this|our|the)\b",
)

ZH_SCOPE = any_of(
    r"从(?:现在|这|此|今|下)\S{0,4}?(?:开始|起|往后)",
    r"今后|以后|往后|之后|此后|后面|接下来|后续|下面的(?:对话|聊天|回答|回复)|从今(?:天|以后)|将来",
    r"每(?:一)?(?:次|个|条|句|段)?(?:的)?(?:回答|回复|答复|消息|答案|话|都)|每次|每当|每回",
    r"(?:所有|全部|任何)(?:的)?(?:回答|回复|答复|消息|答案|问题|对话|日期|代码)",
    r"(?:如果|当|只要)我(?:说|用|发|问|写|输入|打)\S*?(?:时|的时候|，|,)|每当我|默认|统一(?:用|使用|以)|从头到尾|凡事",
    r"(?:跟|和|与|对)我(?:说话|讲话|聊天|交流|对话)",
    r"直到(?:我|对话|聊天|会话)|(?:对话|聊天|会话)结束",
    r"一律|始终|一直|永远|总是|时刻|全程",
    r"(?:整个|整场|全部|本次|这次|这场|本场|我们(?:之后|接下来)?的?)(?:的)?(?:对话|聊天|会话|谈话|交流)(?:过程)?(?:中|里|期间)?",
    r"(?:无论|不管|不论)(?:我|你|什么|问|怎)\S*",
    r"凡是|只要我|只要是",
    r"(?:对话|聊天)(?:中|里|期间)",
)
ZH_DIRECTIVE = any_of(
    r"请|务必|必须|应该?(?!怎|如何)|可以(?!吗)|得(?:用|先|说)|改用|不要|不得|不许|不准|不用|不能|别(?!人|的)|禁止|避免|要(?!求|是|点)|都(?:用|以|得|要|请|别|不|写|加|给|是|尽量|必|只)",
    r"用\S{1,12}(?:回答|回复|写|说|交流|来|语)",
    r"叫我|称呼|扮演|记住|控制在|使用|写成|加上|以\S{1,14}(?:开头|开始|结尾|结束)|回答我|回复我|只(?!有|是|要|因|好)|保持|尽量|你的?(?:名字|身份|角色)?(?:叫|就?是)|先(?:说|写|给|用|问|列)",
)
ZH_LOOSE = any_of(
    r"^(?:请)?(?:让)?你?的?(?:所有)?(?:回答|回复|答复)(?:我)?(?:问题)?(?:的时候|时候?|里|中)?[，,]?(?:请|要|应|必须|不要|别|尽量|不能|不得|简洁|简短|都|最好|控制)",
    r"^(?:请)?(?:你)?(?:说话|讲话|聊天|交流)(?:的时候|时|请|要|不要|别|尽量)",
    r"^我(?:是|在|只|不|看不|有)\S{1,25}[，,](?:所以|因此)?(?:请|别|不要|你|麻烦)(?!帮|写|翻译|解释|介绍|告诉|推荐|给我|问)",
    r"^(?:请)?(?:你)?(?:多|少)(?:用|说|写|讲)\S",
)
ZH_STANDING = any_of(
    r"^(?:请|你|你就|你可以|以后|就|麻烦)?(?:叫|称呼|喊|称)我(?:为|作|做|叫)?[^?？吗呢起做去来]{1,20}[。!！]?$",
    r"^(?:请)?(?:别|不要|停止)再\S+了?[。!！]?$",
    r"^我(?:喜欢|不喜欢|讨厌|希望你|更喜欢)\S{0,20}(?:回答|回复|语气|表情|格式|说话)",
)
ZH_TASK = any_of(
    r"这(?:篇|首|段|个|道|封|份)(?:文章|作文|诗|文|题|故事|信|回答|邮件|报告)?(?:要|里|中|请|不)",
    r"^(?:请)?(?:帮我)?(?:写|翻译|总结|生成|创作|编|设计|列出|列举|解释|介绍|分析|给我|将|把)",
)

# Languages with a scope phrase that says it all; the second pattern is what a request looks like there.
OTHERS = [
    (  # French
        any_of(
            r"\b(?:à|a) (?:partir|compter) (?:de maintenant|d'aujourd'hui|d'ici|de cet instant|de ce (?:moment|message)|de tout de suite|d'à présent)",
            r"\b(?:désormais|dorénavant|par la suite|à l'avenir|jusqu'à nouvel ordre|à chaque fois|chaque fois que|par défaut)\b",
            r"\bdans (?:toutes|chacune de|tous|chaque)\b.{0,25}\b(?:réponses?|messages?)\b",
            r"\b(?:chaque|toutes tes|toutes vos|toutes les|tes prochaines|vos prochaines|aucune de tes) (?:réponses?|messages?)\b",
            r"\b(?:durant|pendant|pour|dans|au cours de|tout au long de)(?: le reste de| la suite de| toute la durée de| l'ensemble de)?(?: toute)? (?:la|notre|cette) (?:conversation|discussion|session)\b",
            r"\b(?:réponds|répondez|écris|écrivez|parle|utilise|commence|termine)\w*(?:-\w+)? toujours\b|\b(?:appelle|tutoie|vouvoie)(?:z|s)?-moi\b",
            r"\b(?:ne|n') ?\w+ (?:plus )?jamais\b|\bquoi que je\b",
        ),
        any_of(
            r"\b\w+(?:s|ez|e)[- ](?:moi|nous)\b|\b(?:réponds|répondez|écri[st]|écrivez|utilise|commence|termine|finis|ajoute|évite|parle|donne|garde|limite|doi\w+|merci de|n'\w+|ne \w+|tutoie|vouvoie|mets|cite|sois|appelle|fais|inclus|conclus|adresse|explique|je (?:veux|voudrais|préfère|souhaite)|tu es)\w*"
        ),
    ),
    (  # German
        any_of(
            r"\bab (?:jetzt|sofort|nun|heute|hier|dieser \w+|diesem \w+)\b|\bvon (?:jetzt|nun|heute|hier) an\b",
            r"\b(?:künftig|zukünftig|fortan|in zukunft|bis auf weiteres|standardmäßig|jedes mal|immer wenn|durchgehend)\b",
            r"\b(?:in )?(?:allen|jeder|jede|jedem|alle|sämtliche\w*|deine[nr]?|eure[nr]?) (?:\w+ ){0,2}?(?:antwort\w*|nachricht\w*)\b",
            r"\b(?:antworte|schreib\w*|verwende|benutze|sprich|nenn\w*|rede) (?:mir |mich |mit mir )?(?:bitte )?(?:immer|stets|nie|niemals)\b",
            r"\b(?:während|für den rest|für die dauer|im (?:weiteren )?verlauf|in|den rest) (?:unsere\w*|diese\w*|des|der) (?:ganzen |gesamten )?\w*(?:gespräch\w*|chat\w*|unterhaltung\w*)",
            r"\bnenn(?:e)? mich\b|\b(?:duze?|sieze?) mich\b|\bsprich mich\b",
        ),
        any_of(
            r"\bbitte\b|\b(?:antworte|schreib|verwend|benutz|sprich|rede|halte|beginn|beend|füg|vermeid|nenn|duz|siez|soll(?:en|st)|musst|müssen|darf|gib|erklär|nutze?|formulier|schließ|setz|lass|mach|zitier|sei\b|ich (?:möchte|will)|du bist|keine?\b)\w*"
        ),
    ),
    (  # Spanish
        any_of(
            r"\b(?:de|desde|a partir de) (?:ahora|aquí|hoy|este (?:momento|mensaje|instante))\b(?: en adelante)?|\ben (?:adelante|lo sucesivo)\b",
            r"\b(?:todas|cada una de|en todas|en cada|cada|ninguna de)\b.{0,18}\b(?:respuestas?|mensajes?)\b|\btodos tus mensajes\b",
            r"\b(?:responde|contesta|escribe|habla|usa|termina|empieza)\w* siempre\b|\bsiempre (?:responde|contesta|escribe|habla|usa|termina|empieza|respónd\w*|contést\w*)",
            r"\b(?:ll[aá]mame|tut[eé]ame|tr[aá]tame de)\b|\b(?:cada vez que|siempre que|hasta nuevo aviso|por defecto)\b",
            r"\b(?:durante|en|por|a lo largo de)(?: el resto de)?(?: toda)? (?:la|esta|nuestra) (?:conversación|charla|sesión)\b",
            r"\bnunca (?:uses|escribas|respondas|empieces|termines|digas|me)\b",
        ),
        any_of(
            r"\b\w+[áéí]\w*(?:me|nos|te)\b|\b(?:debe|deben|tiene|responde|contesta|escribe|usa|utiliza|habla|termina|empieza|comienza|evita|añade|agrega|no \w+|llama|quiero|por favor|mantén|limita|incluye|cita|dame|uses|escribas|respondas|digas|empieces|termines|acaba|pon|explica|sé|haz|eres)\w*"
        ),
    ),
    (  # Italian
        any_of(
            r"\bd'ora in (?:poi|avanti)\b|\b(?:da|a partire da) (?:ora|adesso|oggi|questo momento|qui)(?: in (?:poi|avanti))?\b|\bin futuro\b",
            r"\b(?:ogni|tutte le|nelle tue|in ogni|in tutte le|nessuna delle)\b.{0,18}\b(?:rispost[ae]|messaggi\w?)\b",
            r"\b(?:rispond\w+|scriv\w+|usa\w*|parla\w*) sempre\b|\bsempre in \w+|\bnon \w+ (?:più|mai)\b|\bogni volta che\b",
            r"\b(?:chiamami|dammi del)\b",
            r"\b(?:per|durante|in)(?: il resto dell?a?)?(?: tutta)? ?(?:la|questa|nostra|la nostra) (?:conversazione|chat|chiacchierata)\b",
        ),
        any_of(
            r"\b\w+(?:ami|imi|emi|ammi)\b|\b(?:rispond|scriv|usa|inizia|comincia|termin|finisci|evita|aggiung|parla|chiama|dammi|dovra|devono|deve|devi|mantieni|limita|non|concludi|metti|cita|fai|sii|per favore|includi|voglio|vorrei|spiega|sei\b)\w*"
        ),
    ),
    (  # Portuguese
        any_of(
            r"\b(?:de|a partir de|desde) (?:agora|hoje|já)\b(?: em diante)?|\bdaqui (?:em diante|para a frente|pra frente)\b|\bdoravante\b|\bno futuro\b",
            r"\b(?:todas as|cada|em todas as|em cada|suas próximas|tuas próximas)\b.{0,18}\b(?:respostas?|mensage(?:m|ns))\b",
            r"\b(?:responda|escreva|use|fale|responde)\w* sempre\b|\bsempre (?:responda|escreva|use|fale|termine|comece)\w*|\bnunca (?:use|escreva|responda|comece|diga)\w*|\bsempre que\b|\btoda vez que\b",
            r"\bme chame? de\b|\bchama-me\b|\bme trate\b",
            r"\b(?:durante|n?a|pelo resto d|em)(?: resto d)?a?(?: toda)?(?: a)? (?:nossa|esta|desta) (?:conversa|sessão)\b",
        ),
        any_of(
            r"\b(?:respond|escrev|use|usa|comec|comece|termin|evit|adicion|fale|fala|deve|devem|quero|por favor|mantenha|limite|trate|não|chame|inclu|cite|diga|explique|seja)\w*"
        ),
    ),
    (  # Russian
        any_of(
            r"\bотныне\b|\b(?:с|начиная с) (?:этого|этой|сегодняшнего|данного) (?:момента|минуты|дня|сообщения)\b|\bвпредь\b|\bв дальнейшем\b|\bв будущем\b|\bкаждый раз\b|\bпо умолчанию\b",
            r"\b(?:во всех|в каждом|каждый|все|в твоих|в ваших|все твои|все ваши)\b.{0,25}\b(?:ответ|сообщени)\w*",
            r"\bвсегда (?:отвечай|пиши|говори|используй|заканчивай|начинай)|\b(?:отвечай|пиши|говори|используй)(?:те)?(?: мне)? (?:всегда|только)\b|\bникогда не (?:используй|пиши|употребляй|говори)|\b(?:зови|называй)(?:те)? меня\b|\bобращай(?:ся|тесь) ко мне\b",
            r"\b(?:до конца|на протяжении|в течение|в ходе|во время)(?: всей| всего)? (?:нашего |этого |нашей |этой )?(?:разговора|беседы|диалога|чата)\b|\bв этом (?:чате|разговоре|диалоге)\b",
        ),
        any_of(
            r"\b(?:отвеча|ответ\w+ должн|пиши|говори|использ|начина|заканчива|добавля|избега|должн|пожалуйста|обраща|называ|зови|не |будь|ограничи|заверша|давай|приводи|объясня|я хочу|ты )\w*"
        ),
    ),
    (  # Japanese
        any_of(
            r"これから(?:は|の|ずっと|先)?|今後(?:は|の)?|今から(?:は|ずっと)?|次(?:の(?:回答|返事|返信))?から|以降|(?:すべて|全て|全部|毎回|各|どの)の?(?:返事|回答|返信|答え|応答|メッセージ)|毎回|いつも|常に|終始|最後まで|(?:この|私たちの)?(?:会話|チャット)(?:中|では|の間|を通して|全体)|ずっと|と呼んで|たびに|どんな質問"
        ),
        any_of(
            r"ください|下さい|お願い|(?:して|で)ね|して欲しい|してほしい|すること|しないで|ないで|しろ|せよ|呼んで|でいて|ように|てくれ"
        ),
    ),
    (  # Korean
        any_of(
            r"앞으로(?!의)|이제부터|지금부터|오늘부터|다음부터|이후로?|(?:모든|매|각) ?(?:답변|대답|답|응답|메시지)|매번|항상|언제나|(?:이|우리) ?(?:대화|채팅)(?:에서|동안| 내내| 전체|가 끝날)|대화 ?(?:내내|동안|중)|계속(?:해서)?|(?:라고|로) 불러|때마다"
        ),
        any_of(
            r"주세요|주십시오|해 ?줘|하세요|하십시오|해라|마세요|말아|말 것|할 것|불러|바랍니다|부탁|써 ?줘|달아|말해|줘(?:[.!요]|$)|지 ?마(?:[.! ]|$)"
        ),
    ),
]

TRANSLATE = any_of(
    r"^(?:tradu\w+|übersetze?\w*|переведи\w*|écri[st]\w*(?:-moi)? une?|schreibe?\w* (?:mir )?eine?n?|escribe\w* una?|escreva uma?|scrivi\w* una?|напиши(?:те)? (?:мне )?(?:рассказ|стих|письмо|эссе|историю|пост))\b",
    r"翻訳|번역",
)
