"""What a run is made of: frozen, hashable dataclasses whose defaults are the paper's, and the bridge to command-line flags."""

import dataclasses
import types
import typing
from dataclasses import dataclass, field

import ml_collections

FORMS = ("append", "spread", "mean")  # how latents are made: memory.compress_packed
_CHOICES = {
    "score": ("auto", "max", "mean", "concat", "bm25"),
    "layout": ("auto", "table13", "turns"),
    "system": ("text", "latent"),
    "im": ("whole", "sentences"),
    "form": FORMS,
    "schedule": ("constant", "cosine"),
    "remat": ("none", "dots", "layers"),
    "recall": ("latent", "mixed"),
    "targets": ("one", "all"),
    "im_update": ("union", "replace"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
}


class OutOfRange(ValueError):
    """A field with a value that is not allowed."""


def _check(config, **allowed):
    """Raises OutOfRange for the first field outside `allowed`: name -> (lowest, highest), either may be None."""
    where = type(config).__name__.lower()
    for name, choices in _CHOICES.items():
        if hasattr(config, name) and getattr(config, name) not in choices:
            raise ValueError(f"{where}.{name} is {getattr(config, name)!r}; allowed: {', '.join(choices)}")
    for name, (low, high) in allowed.items():
        value = getattr(config, name)
        if value is None:
            continue
        if not ((low is None or value >= low) and (high is None or value <= high)):
            allow = f"at least {low}" if high is None else f"at most {high}" if low is None else f"{low} to {high}"
            raise OutOfRange(f"{where}.{name} is {value}; allowed: {allow}")


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3's stretching of the low rotary frequencies."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    positions: int = 8192


@dataclass(frozen=True)
class Model:
    """The shape of a backbone. Defaults: Mistral-7B-Instruct-v0.2, the paper's (no sliding window, 32,768 positions)."""

    vocab: int = 32000
    width: int = 4096
    mlp: int = 14336
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    positions: int = 32768
    rope_theta: float = 1e6
    rope_scaling: RopeScaling | None = None
    window: int | None = None  # sliding window of attention, in positions
    norm_eps: float = 1e-5
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self):
        one = (1, None)
        _check(self, vocab=one, width=one, mlp=one, layers=one, heads=one, kv_heads=one, head_dim=(2, None), positions=one,
               window=one, norm_eps=(0, None))
        if self.heads % self.kv_heads:
            raise ValueError(f"model.heads is {self.heads}; allowed: a multiple of model.kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"model.head_dim is {self.head_dim}; allowed: an even number")


@dataclass(frozen=True)
class Memory:
    """Both memories. Defaults: the paper, sections 3.2-3.5 and A.1."""

    latents: int = 8  # M, per window
    form: str = "append"  # one of FORMS
    rank: int = 16
    alpha: float = 32.0
    window: int = 512  # P: text, its two frame tokens and M
    score: str = "max"
    tau_low: float = 0.5
    tau_high: float = 0.7
    top: int = 4  # with bm25, which has no thresholds: so many exchanges raw
    recent: int = 0  # so many latest exchanges always raw
    keep_first: bool = False  # the authors' code: the first exchange always raw
    budget: int | None = None  # tokens of recalled exchanges; None: what the context leaves
    layout: str = "table13"
    system: str = "text"
    im: str = "whole"
    im_update: str = "union"
    im_cap: int = 1024  # tokens of instructional memory

    def __post_init__(self):
        _check(self, latents=(1, 64), rank=(1, 1024), alpha=(0, None), window=(self.latents + 3, 8192), tau_low=(-1, 1),
               tau_high=(-1, 1), top=(0, None), recent=(0, None), budget=(0, None), im_cap=(1, None))
        if self.system == "latent" and self.layout != "table13":
            raise ValueError(f"memory.system is 'latent'; allowed with memory.layout {self.layout!r}: text "
                             "('latent' needs memory.layout table13 and trained adapters)")
        if self.tau_low > self.tau_high:
            raise ValueError(f"memory.tau_low is {self.tau_low}; allowed: at most memory.tau_high ({self.tau_high})")


@dataclass(frozen=True)
class Chat:
    """Generation. Defaults: greedy and 512 new tokens, as the paper decodes."""

    context: int = 8192  # slots of the cache at most
    chunk: int = 256  # prompt tokens per prefill call
    block: int = 8  # new tokens per decode call, the grain of streaming
    max_new: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self):
        _check(self, context=(64, None), chunk=(8, 8192), block=(1, 1024), max_new=(1, None), temperature=(0, 10), top_p=(0, 1),
               top_k=(0, None), repetition_penalty=(0.1, 10), seed=(0, 2**32 - 1))
        if self.context % self.chunk:
            raise ValueError(f"chat.context is {self.context}; allowed: a multiple of chat.chunk ({self.chunk})")
        if 0 < self.temperature < 0.01:
            raise ValueError(f"chat.temperature is {self.temperature}; allowed: 0 (greedy) or 0.01 to 10")
        if "" in self.stop:
            raise ValueError("chat.stop holds an empty text; allowed: texts of at least one character")


@dataclass(frozen=True)
class Train:
    """Training of the adapters. Defaults: the paper, section A.2; what it leaves open is plain."""

    data: str | None = None  # a folder that train.curate wrote; None: the default source, curated at first use
    out: str = "runs/rhea"  # checkpoints, curves, adapters
    seed: int = 0
    batch: int = 128  # samples an optimizer step
    epochs: int = 2
    hours: float | None = None  # stop after so long,
    stop: int | None = None  # or so many optimizer steps, the schedule being over the epochs all the same
    lr: float = 1e-5
    lr_cmp: float | None = None  # of cmp and mem; None: lr
    schedule: str = "constant"  # after the warm-up: constant, or cosine down to 0
    warmup: int = 0  # optimizer steps
    clip: float | None = None  # norm of the whole gradient at most
    decay: float = 0.01  # of matrices only
    shapes: tuple[tuple[int, int, int, int, int], ...] = ((1, 2048, 1024, 4, 512), (1, 4096, 1024, 8, 512), (1, 8192, 1024, 16, 512))
    # of micro-steps: rows of prompts, their positions, targets, rows of windows, their positions; both are packed; the last holds the most
    longest: int = 1024  # targets of one sample, the rest of a longer reply is not trained on
    remat: str = "layers"  # recomputed in the backward pass: none, dots (all but matrix products), layers (all but their inputs)
    one_by_one: bool = False  # compress window by window: slower, less memory
    standardise: bool = False  # latents by their mean and deviation per dimension, measured before training
    history: int | None = None  # exchanges of a sample's history at most, the latest
    recall: str = "latent"  # levels of the history in samples: all latent, or mixed as in the chat
    targets: str = "one"  # turns of a session that are samples: one drawn per epoch, or all
    obey: float = 0.0  # share of samples with a standing instruction that their replies obey
    rebuild: float = 0.0  # share of samples that ask for the reply before once more, so that its latents must hold it
    distill: float = 0.0  # share of the loss that is KL to the bare backbone, which reads the raw history
    contrast: float = 0.0  # weight of the retrieval term
    temperature: float = 0.05  # of the retrieval term's cosines
    save_minutes: float = 10.0
    keep: int = 2  # latest checkpoints, besides the best
    eval_steps: int = 50
    eval_sessions: int = 16

    def __post_init__(self):
        _check(self, batch=(1, None), epochs=(1, None), hours=(0, None), stop=(0, None), history=(1, None), lr=(0, 1), lr_cmp=(0, 1), warmup=(0, None), clip=(0, None),
               decay=(0, 1), obey=(0, 1), rebuild=(0, 1), distill=(0, 1), contrast=(0, None), temperature=(1e-3, 10), save_minutes=(0, None), keep=(1, None), longest=(1, None),
               eval_steps=(1, None), eval_sessions=(0, None), seed=(0, 2**32 - 1))
        for shape in self.shapes:
            if len(shape) != 5 or not all(type(n) is int and n > 0 for n in shape):
                raise ValueError(f"train.shapes has {shape}; allowed: five whole numbers above 0 each")
        if not self.shapes:
            raise ValueError("train.shapes is empty; allowed: at least one shape")


@dataclass(frozen=True)
class Config:
    """One experiment: whose weights, their shape, and how memory and chat behave."""

    weights: str = "mistralai/Mistral-7B-Instruct-v0.2"
    adapters: str | None = None  # None: those that ship for these weights, if any; a training starts from those that are named
    dtype: str = "auto"
    template: str | None = None  # a name in tokenizer.TEMPLATES or jinja text; None: the model's own
    model: Model = field(default_factory=Model)
    memory: Memory = field(default_factory=Memory)
    chat: Chat = field(default_factory=Chat)
    train: Train = field(default_factory=Train)

    def __post_init__(self):
        _check(self)


def to_dict(config):
    """The dataclass as a locked ml_collections.ConfigDict, which a config file edits and flags override.

    An optional field is a typed reference, so that a flag may set it although it is None.
    """
    def convert(owner, name, hint):
        value, inner = getattr(owner, name), _optional(hint)
        if dataclasses.is_dataclass(value):
            return to_dict(value)
        return ml_collections.FieldReference(value, field_type=inner) if inner in (int, float, str) else value

    hints = typing.get_type_hints(type(config))
    return ml_collections.ConfigDict({f.name: convert(config, f.name, hints[f.name]) for f in dataclasses.fields(config)}).lock()


def _optional(hint):
    """The type X of a hint `X | None`, else None."""
    return typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else None


def from_dict(values, kind=Config):
    """The frozen dataclass of a ConfigDict or mapping.

    Raises: ValueError naming an unknown field and what is allowed, or a value of the wrong type or range.
    """
    if values is None or dataclasses.is_dataclass(values):
        return values
    known = {f.name: typing.get_type_hints(kind)[f.name] for f in dataclasses.fields(kind)}
    values, given = dict(values), {}
    for name in values:
        if name not in known:
            raise ValueError(f"{kind.__name__.lower()}.{name} is not a field; allowed: {', '.join(known)}")
        hint, value = _optional(known[name]) or known[name], values[name]
        if dataclasses.is_dataclass(hint):
            value = from_dict(value, hint)
        elif value is None and _optional(known[name]):
            pass
        elif typing.get_origin(hint) is tuple:
            value = (value,) if isinstance(value, str) else tuple(tuple(v) if isinstance(v, list) else v for v in value)
        elif hint is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        elif not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            raise ValueError(f"{kind.__name__.lower()}.{name} is {value!r}; allowed: {hint.__name__}")
        given[name] = value
    return kind(**given)
