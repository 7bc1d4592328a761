"""The frozen backbone of a training run: weights, tokenizer and the constants of its latents."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rhea_jax import assets, context, generate, tokenizer, weights
from rhea_jax.config import Model
from rhea_jax.model import Params, unroll
from rhea_jax.startup import native_dtype


@dataclass(frozen=True, eq=False)
class Base:
    """A loaded backbone, unrolled on a CPU; adapters take the same form by `shaped`."""

    model: Model
    params: Params
    tokenizer: tokenizer.Tokenizer
    fingerprint: str

    def shaped(self, adapters):
        """Adapters in stacked form as this backbone's layers are."""
        if not isinstance(self.params.layers, tuple):
            return adapters
        return adapters.replace(cmp=unroll(adapters.cmp), gen=unroll(adapters.gen))


def load_base(name, dtype="auto", template=None, offline=False):
    """The backbone of a config's `weights`.  Raises: ValueError, one line, for anything missing or broken."""
    path = assets.resolve(name, offline)
    model = weights.read_config(path)
    dtype = native_dtype() if dtype == "auto" else dtype
    params = weights.load(path, model, dtype, unrolled=jax.default_backend() == "cpu")
    return Base(model, params, tokenizer.load_tokenizer(path, template), weights.fingerprint(model, params))


def standardised(base, memory, adapters, texts):
    """The adapters with center and spread such that latents of these texts have mean 0 and the deviation of embeddings.

    texts: of a hundred replies or so; each gives its first window.
    """
    latents = []
    for text in texts:
        tokens, length = context.windows(base.tokenizer, memory, text)
        latents.append(np.asarray(generate.compress_step(base.model, base.params, base.shaped(adapters), tokens[:1], length[:1]))[0])
    latents = np.concatenate(latents)
    size = float(jnp.sqrt(jnp.mean(jnp.square(base.params.embed.astype(jnp.float32)))))
    return adapters.replace(center=jnp.asarray(latents.mean(0)), spread=jnp.asarray(size / np.maximum(latents.std(0), 1e-6)))
