"""A backbone of random weights that fits a test: `--model` must name a folder of this shape.

    pytest
Expected: nothing sensible is said, in milliseconds.
"""

from configs.chat import get_config as chat_config


def get_config():
    config = chat_config()
    config.weights = "tests/tiny"
    m = config.model
    m.vocab, m.width, m.mlp, m.layers, m.heads, m.kv_heads, m.head_dim, m.positions, m.rope_theta = 96, 32, 48, 3, 4, 2, 8, 512, 1e4
    config.chat.context, config.chat.chunk, config.chat.max_new = 512, 16, 24
    return config
