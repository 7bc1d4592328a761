"""The paper's backbone and settings: Mistral-7B-Instruct-v0.2, 32,768 positions, no sliding window.

    python -m infer.chat --config configs/mistral7b.py --adapters DIR
Expected: on one 24 GB GPU in bfloat16.  The paper configures an input cap of 64K, twice the positions that the model has.
"""

from rhea_jax.config import Config, to_dict


def get_config():
    config = to_dict(Config())
    config.chat.context = 32768
    return config
