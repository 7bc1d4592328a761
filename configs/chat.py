"""What a chat with any model changes in the paper's settings; `--model` alone uses this.

    python -m infer.chat --model FOLDER
"""

from rhea_jax.config import Config, to_dict


def get_config():
    config = to_dict(Config())
    m = config.memory
    m.score = m.layout = "auto"  # by whether trained adapters are there
    m.im, m.im_update = "sentences", "replace"
    m.recent = 1  # short follow-ups name nothing that a score could find
    return config
