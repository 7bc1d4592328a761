"""The frozen backbone of a training run: weights, tokenizer and the constants of its latents."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from rhea_jax import assets, context, generate, tokenizer, weights
from rhea_jax.config import Model
from rhea_jax.model import Params, fitted


@dataclass(frozen=True, eq=False)
class Base:
    """A loaded backbone, in the form that this device runs best."""

    model: Model
    params: Params
    tokenizer: tokenizer.Tokenizer
    fingerprints: tuple[str, ...]

    @property
    def fingerprint(self):
        """As it is loaded."""
        return self.fingerprints[0]


def load_base(name, dtype="auto", template=None, offline=False):
    """The backbone of a config's `weights`.  Raises: ValueError, one line, for anything missing or broken."""
    path = assets.resolve(name, offline)
    model = weights.read_config(path)
    params = weights.load_here(path, model, dtype)
    return Base(model, params, tokenizer.load_tokenizer(path, template), weights.fingerprints(model, params))


def standardised(base, memory, adapters, texts):
    """The adapters with center and spread such that latents of these texts have mean 0 and the deviation of embeddings.

    texts: of a hundred replies or so; each gives its first window.
    """
    latents, formed = [], fitted(adapters, base.params)
    for text in texts:
        tokens, length = context.windows(base.tokenizer, memory, text)
        latents.append(np.asarray(generate.compress_step(base.model, base.params, formed, tokens[:1], length[:1]))[0])
    latents = np.concatenate(latents)
    size = float(jnp.sqrt(jnp.mean(jnp.square(base.params.embed.astype(jnp.float32)))))
    return adapters.replace(center=jnp.asarray(latents.mean(0)), spread=jnp.asarray(size / np.maximum(latents.std(0), 1e-6)))
