"""Qwen3-0.6B: as a chat model, or as the classifier of the paper's instruction recognizer.

    python -m infer.chat --config configs/qwen3_0p6b.py
    python -m infer.chat --recognizer Qwen/Qwen3-0.6B
Expected: 2.4 GB of memory in float32 on a CPU; thinking is off.
"""

from configs.chat import get_config as chat_config


def get_config():
    config = chat_config()
    config.weights = "Qwen/Qwen3-0.6B"
    m = config.model
    m.vocab, m.width, m.mlp, m.layers, m.heads, m.kv_heads, m.head_dim = 151936, 1024, 3072, 28, 16, 8, 128
    m.positions, m.norm_eps, m.tied, m.qk_norm = 40960, 1e-6, True, True
    return config
