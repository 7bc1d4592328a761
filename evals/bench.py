"""Speed and memory on this machine, beside transformers in one interleaved run: `python -m evals.bench [--json]`."""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

from rhea_jax.startup import cache_folder, in_one_line, prepare

_FIRST = """
import sys, time
start = time.perf_counter()
sys.argv = ["infer.chat", "--prompt", "Hello!"]
from infer import chat
FLAGS = chat.FLAGS
say = chat.Chat.ask
def ask(self, text):
    turn = self.session.turn(text, lambda piece, thought=False: print(time.perf_counter() - start, flush=True))
chat.Chat.ask = ask
sys.exit(chat.main(sys.argv))
"""


def interleaved(rounds, **runs):
    """Best seconds of each run; they take turns, so that a change of the machine's speed meets all of them."""
    best = dict.fromkeys(runs, float("inf"))
    for n in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if n:  # the first round compiles
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def chat_backbone(adapters=True):
    """The default model as the chat loads it, with adapters attached: random ones, which cost as much as trained ones."""
    import jax
    from configs.smollm2_135m import get_config
    from infer.backbone import load_backbone
    from rhea_jax.config import from_dict
    from rhea_jax.model import fitted, init_adapters

    b = load_backbone(from_dict(get_config()))
    made = init_adapters(b.model, b.config.memory, b.params, jax.random.key(0))
    made = made.replace(gen=made.gen.replace(**{n: (a, 1e-3 * jax.random.normal(jax.random.key(1), w.shape)) for n, (a, w) in
                                                 ((n, getattr(made.gen, n)) for n in ("q", "v", "down"))}))
    return replace(b, adapters=fitted(made, b.params), trained=True, fingerprint="bench")


def generation(b, context, new, rounds):
    """Prefill and decode at a context, ours and transformers'."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch
    import transformers

    from rhea_jax import assets, generate
    from rhea_jax.memory import Hybrid

    warnings.simplefilter("ignore", FutureWarning)  # of the peer's own making
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    path = assets.resolve("smollm2-135m")
    peer = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa").eval()
    torch.set_num_threads(os.cpu_count())
    ids = np.random.default_rng(0).integers(1000, 40000, (1, context)).astype(np.int32)
    hybrid = Hybrid(ids, np.full_like(ids, -1), np.ones_like(ids, bool))
    none, no_end, chat = jnp.zeros((1, b.config.memory.latents, b.model.width)), np.array([-5], np.int32), b.config.chat
    state, past = [None], [None]

    def prefill():
        out, cache = generate.fill(b.model, b.params, b.gen, chat, hybrid, none)
        token = generate.first(generate.Sampling(), out, None, jax.random.key(0))
        state[0] = generate.State(cache, token, jnp.full(1, context, jnp.int32), jnp.zeros(1, bool), None, jax.random.key(0))
        token.block_until_ready()

    def decode():
        for _ in range(new // chat.block):
            out, state[0] = generate.decode(b.model, generate.Sampling(), chat.block, b.params, b.gen, no_end, new, state[0])
            np.asarray(out)

    def peer_prefill():
        with torch.inference_mode():
            past[0] = peer(torch.tensor(ids), use_cache=True, logits_to_keep=1)

    def peer_decode():
        with torch.inference_mode():
            out = past[0]
            for _ in range(new):
                out = peer(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)

    best = interleaved(rounds, prefill=prefill, decode=decode, peer_prefill=peer_prefill, peer_decode=peer_decode)
    return {"prefill_s": best["prefill"], "decode_tok_s": new / best["decode"], "transformers_prefill_s": best["peer_prefill"],
            "transformers_decode_tok_s": new / best["peer_decode"], "prefill_ratio": best["peer_prefill"] / best["prefill"],
            "decode_ratio": best["peer_decode"] / best["decode"]}


def turn_at(b, file, at, new, rounds):
    """Seconds of one turn at exchange `at`: REA with fixed levels, full history read anew, full history with its KV kept."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from infer.lexical import Index, words
    from rhea_jax import context, generate, memory
    from rhea_jax.model import init_cache

    conv = json.loads(Path(file).read_text(encoding="utf-8").splitlines()[0])["conv"]
    m = replace(b.config.memory, layout="turns")
    level = np.zeros(at - 1, int)
    level[np.linspace(0, at - 2, 20).astype(int)] = memory.LATENT
    level[np.linspace(0, at - 2, 20).astype(int)[::4]] = memory.RAW
    rows, bank = [], memory.init_bank(m, b.model.width, 64)
    compress = lambda text: [generate.compress_step(b.model, b.params, b.adapters, t[None], n[None])  # noqa: E731
                             for t, n in zip(*context.windows(b.tokenizer, m, text))]
    for e, turn in enumerate(conv[: at - 1]):
        latents = jnp.concatenate(compress(turn["assistant"]))
        rows.append((bank.count, len(latents)))
        bank = memory.store(bank, latents, e)
    exchanges = [context.Exchange(t["user"], t["assistant"], *r) for t, r in zip(conv, rows)]
    question, chat = conv[at - 1]["user"], replace(b.config.chat, max_new=new)
    full = context.build(b.tokenizer, m, "turns", None, [], [(e, x, memory.RAW) for e, x in enumerate(exchanges)], question)
    wide = replace(chat, context=-(-(len(full) + 2 * new) // 2048) * 2048)
    last = context.build(b.tokenizer, m, "turns", None, [], [], question)

    def decode(out, cache, length, gen):
        token = generate.first(generate.Sampling(), out, None, jax.random.key(0))
        state = generate.State(cache, token, jnp.full(1, length, jnp.int32), jnp.zeros(1, bool), None, jax.random.key(0))
        for _ in range(new // chat.block):
            out, state = generate.decode(b.model, generate.Sampling(), chat.block, b.params, gen, np.array([-5], np.int32), new, state)
            np.asarray(out)
        return state.cache

    def rea(levels=level):
        query = jnp.concatenate(compress(question))
        np.asarray(memory.scores(query, bank.latents, bank.owner, len(bank.owner), "max"))
        plan = context.build(b.tokenizer, m, "turns", None, [], [(int(e), exchanges[e], levels[e]) for e in np.flatnonzero(levels)], question)
        decode(*generate.fill(b.model, b.params, b.gen, chat, plan.hybrid, bank.latents), len(plan), b.gen)
        compress(conv[at - 1]["assistant"])[-1].block_until_ready()
        return len(plan)

    kept = []

    def re_read():
        kept[:] = [decode(*generate.fill(b.model, b.params, None, wide, full.hybrid, bank.latents), len(full), None)]

    def compile_wide():
        """One chunk and one block at the full history's cache size: reading it all just to compile would take minutes."""
        x, at = jnp.zeros((1, chat.chunk, b.model.width), b.params.embed.dtype), np.arange(chat.chunk, dtype=np.int32)[None]
        cache = init_cache(b.model, b.params.layers, 1, generate.capacity(wide, len(full)), b.params.embed.dtype)
        decode(*generate.prefill(b.model, b.params, None, x, at, cache), chat.chunk, None)

    def keep_kv():
        """The turn's own part on top of a cache that already holds all before it; the cache is cut back first."""
        cache = kept[0].replace(length=jnp.int32(len(full) - len(last)))
        start, T = len(full) - len(last), len(last)
        at_BT = np.full((1, -(-T // chat.chunk) * chat.chunk), -1, np.int32)
        at_BT[0, :T] = np.arange(start, start + T)
        tokens = np.pad(last.hybrid.tokens, ((0, 0), (0, at_BT.shape[1] - T)))
        for i in range(0, at_BT.shape[1], chat.chunk):
            x = generate.embed_step(b.params.embed, bank.latents, tokens[:, i : i + chat.chunk], np.full((1, chat.chunk), -1, np.int32))
            out, cache = generate.prefill(b.model, b.params, None, x, at_BT[:, i : i + chat.chunk], cache)
        kept[0] = decode(out, cache, len(full), None)

    index = Index()
    index.change([words(f"{e.user} {e.reply}") for e in exchanges])
    as_in_chat = np.zeros_like(level)
    as_in_chat[[*np.argsort(-index.scores(words(question)), kind="stable")[: m.top], at - 2]] = memory.RAW
    compile_wide()
    best = interleaved(rounds, rea=rea, rea_chat=lambda: rea(as_in_chat))
    for name, run in (("re_read", re_read), ("keep_kv", keep_kv)):
        start = time.perf_counter()
        run()
        best[name] = time.perf_counter() - start
    return {"turn_rea_s": best["rea"], "turn_rea_chat_levels_s": best["rea_chat"], "turn_full_reread_s": best["re_read"],
            "turn_full_kv_kept_s": best["keep_kv"], "turn_speedup": best["re_read"] / best["rea"], "turn_tokens_rea": rea(),
            "turn_tokens_rea_chat": rea(as_in_chat), "turn_tokens_full": len(full)}


def retrieval(b, rounds):
    """Milliseconds of Eq. 4 over 1,000 and 10,000 exchanges of one window."""
    import jax

    from rhea_jax import memory

    out = {}
    for count in (1000, 10_000):
        latents = jax.random.normal(jax.random.key(0), (count, b.config.memory.latents, b.model.width))
        owner, query = jax.numpy.arange(count, dtype="int32"), latents[:1]
        best = interleaved(rounds, scores=lambda: memory.scores(query, latents, owner, count).block_until_ready())
        out[f"retrieval_{count}_ms"] = 1e3 * best["scores"]
    return out


def starts():
    """Seconds from the program's start to the first text: with nothing compiled yet, and again."""
    with tempfile.TemporaryDirectory() as cache:
        (Path(cache) / "models").symlink_to(cache_folder() / "models")
        env = {**os.environ, "RHEA_CACHE": cache, "RHEA_HOME": cache}
        run = lambda: float(subprocess.run([sys.executable, "-c", _FIRST], env=env, capture_output=True, text=True, check=True).stdout.split()[0])  # noqa: E731
        return {"first_start_s": run(), "second_start_s": min(run() for _ in range(2))}


def main():
    parser = argparse.ArgumentParser(prog="evals.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--context", type=int, default=1024, help="prompt tokens of prefill and decode")
    parser.add_argument("--new", type=int, default=64, help="tokens decoded per round")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, of which the best counts")
    parser.add_argument("--data", default=os.environ.get("RHEA_DATA"), help="benchmark data, for the turn at exchange 60")
    parser.add_argument("--train", action="store_true", help="one training micro-step beside torch and peft, and nothing else")
    args = parser.parse_args()
    prepare()
    if args.train:
        from evals.bench_train import measure

        return show(measure(args.rounds), args.json)
    import jax

    result = starts()
    b = chat_backbone()
    result |= {"device": jax.devices()[0].device_kind, "cores": os.cpu_count(), "dtype": b.config.dtype, "context": args.context}
    result |= generation(b, args.context, args.new, args.rounds)
    result["decode_ratio_float32"] = result["decode_ratio"] if b.config.dtype == "float32" else \
        generation(replace_dtype(b, "float32"), args.context, args.new, args.rounds)["decode_ratio"]
    result |= retrieval(b, args.rounds)
    file = args.data and Path(args.data) / "mt_bench_plus/secom_example.jsonl"
    if file and file.exists():
        result |= turn_at(b, file, 60, 128, args.rounds)
    from rhea_jax import generate, memory

    result["executables"] = sum(f._cache_size() for f in (generate.compress_step, generate.embed_step, generate.prefill, generate.first,
                                                          generate.decode, memory.scores))
    result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    show(result, args.json)


def show(result, as_json):
    """Prints the figures as one line of JSON or as a table."""
    result = {k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}
    if as_json:
        print(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "value", title="SmolLM2-135M-Instruct, best of the timed rounds")
    for name, value in result.items():
        table.add_row(name, str(value))
    Console().print(table)


def replace_dtype(b, dtype):
    """The same backbone in another dtype."""
    import jax

    cast = lambda x: x.astype(dtype) if jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else x  # noqa: E731
    return replace(b, params=jax.tree.map(cast, b.params), config=replace(b.config, dtype=dtype))


if __name__ == "__main__":
    sys.exit(in_one_line(main))
