"""Vicuna-7B v1.5: 4,096 positions.  The paper names v1.3, which has 2,048, and a limit of 4K, which only v1.5 has.

    python -m infer.chat --config configs/vicuna7b.py
Expected: on one 24 GB GPU in float16.
"""

from rhea_jax.config import Config, to_dict


def get_config():
    config = to_dict(Config())
    config.weights, config.template = "lmsys/vicuna-7b-v1.5", "vicuna"
    m = config.model
    m.mlp, m.kv_heads, m.positions, m.rope_theta = 11008, 32, 4096, 1e4
    config.chat.context = 4096
    return config
