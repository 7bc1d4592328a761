"""SmolLM2-1.7B-Instruct, the paper's smallest backbone, with the chat's settings.

    python -m infer.chat --config configs/smollm2_1p7b.py
Expected: 7 GB of memory in float32 on a CPU, half of that in bfloat16 on a GPU.
"""

from configs.chat import get_config as chat_config


def get_config():
    config = chat_config()
    config.weights = "HuggingFaceTB/SmolLM2-1.7B-Instruct"
    m = config.model
    m.vocab, m.width, m.mlp, m.layers, m.heads, m.kv_heads, m.head_dim = 49152, 2048, 8192, 24, 32, 32, 64
    m.positions, m.rope_theta, m.tied = 8192, 130000.0, True
    return config
