"""The default: SmolLM2-135M-Instruct out of a registry wheel, on any CPU.

    python -m infer.chat
Expected: first reply within a minute of the first start, within seconds afterwards.

    python -m train.run --config configs/smollm2_135m.py
A recipe for hours on two cores instead of the paper's: latents as standardised means, short targets, small batches, a high rate.
"""

from configs.chat import get_config as chat_config


def get_config():
    config = chat_config()
    config.weights = "smollm2-135m"
    m = config.model
    m.vocab, m.width, m.mlp, m.layers, m.heads, m.kv_heads, m.head_dim = 49152, 576, 1536, 30, 9, 3, 64
    m.positions, m.rope_theta, m.norm_eps, m.tied = 8192, 1e5, 1e-5, True
    config.chat.repetition_penalty = 1.1  # greedy alone falls into loops, and a stored loop comes back by recall
    config.memory.form = "mean"
    t = config.train
    t.out, t.batch, t.epochs = "runs/smollm2_135m", 16, 2
    t.lr, t.schedule, t.warmup, t.clip = 1e-3, "cosine", 15, 1.0
    t.standardise, t.remat, t.longest = True, "none", 160
    t.shapes, t.eval_sessions = ((1, 640, 320, 2, 512),), 12
    t.contrast, t.obey = 0.1, 0.15
    return config
