"""One training micro-step beside torch (transformers and peft): same sample, shapes, dtype, recomputation; for `evals.bench --train`."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
import warnings

WINDOWS, WINDOW, PROMPT, TARGETS = 2, 512, 640, 320  # positions are all used: padding would flatter whoever skips it


def _ids(shape, seed):
    import numpy as np

    return np.random.default_rng(seed).integers(1000, 40000, shape).astype(np.int32)


def ours(remat):
    """A function that runs one micro-step of train.step, and the seconds that compiling took."""
    import jax
    import numpy as np

    from configs.smollm2_135m import get_config
    from rhea_jax.config import from_dict
    from rhea_jax.model import fitted, init_adapters
    from train import data, step
    from train.base import load_base

    config = from_dict(get_config())
    base, memory = load_base(config.weights), config.memory
    train = dataclasses.replace(config.train, remat=remat, contrast=0.0, shapes=((1, PROMPT, TARGETS, WINDOWS, WINDOW),))
    tokens, latent = _ids(PROMPT, 0), np.full(PROMPT, -1, np.int32)
    latent[64 : 64 + 8 * WINDOWS] = np.arange(8 * WINDOWS)
    sample = data.Sample("bench", tokens, latent, PROMPT - TARGETS, tuple(_ids((WINDOWS, WINDOW), 1)), -1, False)
    batch = data.collate(memory, train, train.shapes[0], [sample])
    state = [step.init_state(train, fitted(init_adapters(base.model, memory, base.params, jax.random.key(0)), base.params), 10)]
    start = time.perf_counter()
    made = step.microstep.lower(base.model, train, base.params, state[0], batch).compile()
    seconds = time.perf_counter() - start

    def run():
        state[0] = made(base.params, state[0], batch)
        jax.block_until_ready(state[0].grads)

    return run, seconds


def theirs(remat):
    """The same work in torch: two peft adapters on one model, switched between compressing and generating."""
    import peft
    import torch
    import transformers

    from rhea_jax import assets

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(os.cpu_count())
    path = assets.resolve("smollm2-135m")
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa")
    form = peft.LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    model = peft.get_peft_model(model, form, adapter_name="cmp")
    model.add_adapter("gen", form)
    if remat != "none":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    inner = model.base_model.model
    windows, tokens = (torch.tensor(x).long() for x in (_ids((WINDOWS, WINDOW), 1), _ids(PROMPT, 0)))

    def run():
        model.set_adapter("cmp")
        h = inner.model(input_ids=windows, use_cache=False).last_hidden_state
        latents = h[:, : WINDOW // 8 * 8].reshape(WINDOWS, 8, -1, h.shape[-1]).mean(2).reshape(-1, h.shape[-1])
        model.set_adapter("gen")
        for name, p in model.named_parameters():
            p.requires_grad_("lora_" in name)  # set_adapter freezes the other one
        x = inner.get_input_embeddings()(tokens)
        x = torch.cat([x[:64], latents, x[64 + len(latents) :]])[None]
        h = inner.model(inputs_embeds=x, use_cache=False).last_hidden_state[0, PROMPT - TARGETS - 1 : -1]
        torch.nn.functional.cross_entropy(inner.lm_head(h), tokens[PROMPT - TARGETS :], reduction="sum").backward()

    return run, 0.0


def measure(rounds):
    """Seconds of a micro-step of both, interleaved, with and without recomputation; peak memory of each in a process of its own."""
    from evals.bench import interleaved

    result = {}
    for remat in ("none", "layers"):
        (mine, seconds), (peer, _) = ours(remat), theirs(remat)
        best = interleaved(rounds, mine=mine, peer=peer)
        result |= {f"train_{remat}_s": best["mine"], f"train_{remat}_torch_s": best["peer"], f"train_{remat}_ratio": best["peer"] / best["mine"],
                   f"train_{remat}_compile_s": seconds}
        for side in ("ours", "theirs"):
            done = subprocess.run([sys.executable, "-m", "evals.bench_train", side, remat], capture_output=True, text=True, check=True)
            result[f"train_{remat}_{side}_gib"] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    from rhea_jax.startup import prepare

    prepare()
    step_, _ = {"ours": ours, "theirs": theirs}[sys.argv[1]](sys.argv[2])
    step_()
    step_()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
