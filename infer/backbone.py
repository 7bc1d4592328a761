"""Loading a model: weights, tokenizer and adapters into one Backbone, or a classifier for instructions."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from infer import recognizer
from rhea_jax import assets, generate, memory, tokenizer, weights
from rhea_jax.config import Chat, Config, Model
from rhea_jax.model import Adapters, Params, fitted, init_adapters


@dataclass(frozen=True, eq=False)
class Backbone:
    """A loaded model: everything of a chat that no conversation changes."""

    config: Config
    model: Model
    params: Params
    tokenizer: tokenizer.Tokenizer
    adapters: Adapters | None  # None: neither scores nor prompts have a use for latents
    trained: bool  # whether the generator can read latents
    fingerprint: str | None  # of latents

    @property
    def gen(self):
        """The generator's adapter, None where there is no trained one."""
        return self.adapters.gen if self.trained else None


def load_backbone(config, offline=False, shape_given=False):
    """Loads weights, tokenizer and adapters, and settles what the config leaves on auto.

    shape_given: the config's model is a promise that the weights must keep.
    Raises: ValueError, one line, for anything that is missing, broken or does not fit together.
    """
    path = assets.resolve(config.weights, offline)
    model = weights.read_config(path)
    if shape_given and model != config.model:
        names = [f for f in model.__dataclass_fields__ if getattr(model, f) != getattr(config.model, f)]
        off = "; ".join(f"{n} is {getattr(model, n)}, the config says {getattr(config.model, n)}" for n in names)
        raise ValueError(f"{path} does not fit the config's model: {off}")
    params = weights.load_here(path, model, config.dtype)
    if config.adapters:
        adapters, card = weights.load_adapters(config.adapters, model, weights.fingerprints(model, params))
    else:
        adapters, card = None, {}
    mem = config.memory
    mem = replace(mem, score=("max" if adapters else "bm25") if mem.score == "auto" else mem.score,
                  layout=card.get("layout", "turns") if mem.layout == "auto" else mem.layout,
                  latents=len(adapters.mem) if adapters else mem.latents)
    if adapters is None and mem.score != "bm25":
        adapters = init_adapters(model, mem, params, jax.random.key(0))
    chat = replace(config.chat, context=min(config.chat.context, model.positions // config.chat.chunk * config.chat.chunk))
    if generate.room(chat) < chat.chunk:
        raise ValueError(f"chat.max_new is {chat.max_new}; allowed: at most {chat.context - chat.chunk} with chat.context "
                         f"{chat.context} and chat.chunk {chat.chunk}")
    if mem.system == "latent" and not config.adapters:
        raise ValueError("memory.system is 'latent', which needs trained adapters; allowed without them: 'text'")
    config = replace(config, model=model, memory=mem, chat=chat, dtype=params.embed.dtype.name)
    mark = adapters and weights.latents_fingerprint(weights.fingerprint(model, params), adapters, mem)
    adapters = adapters and fitted(adapters, params)
    return Backbone(config, model, params, tokenizer.load_tokenizer(path, config.template), adapters, bool(config.adapters), mark)


def load_verdict(name, offline=False):
    """A function from a message to log P(YES) - log P(NO) at the one position behind the classifier's prompt.

    Paper: Table 6; read at one position instead of sampled, so that the same message always gets the same verdict.
    """
    path = assets.resolve(name, offline)
    model = weights.read_config(path)
    params = weights.load_here(path, model)
    t = tokenizer.load_tokenizer(path, "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    chat = Chat(context=2048, max_new=1)  # the prompt is a few hundred tokens
    sides = [sorted({t.encode(form)[0] for form in forms}) for forms in (("YES", " YES"), ("NO", " NO"))]

    def log_odds(text):
        ids = ([] if t.bos is None else [t.bos]) + t.encode(recognizer.verdict_prompt(text))
        hybrid = memory.Hybrid(np.array([ids], np.int32), np.full((1, len(ids)), -1, np.int32), np.ones((1, len(ids)), bool))
        out, _ = generate.fill(model, params, None, chat, hybrid, jnp.zeros((1, 1, model.width)))
        yes, no = (jax.nn.logsumexp(out[0, jnp.array(side)]) for side in sides)
        return float(yes - no)

    return log_odds
