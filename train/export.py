"""Adapters for other programs, and from them.

python -m train.export --model NAME --adapters DIR --peft OUT    PEFT folders OUT/cmp and OUT/gen
python -m train.export --model NAME --adapters DIR --merge OUT   a model folder with gen in its weights
python -m train.export --model NAME --from-peft DIR --out OUT    adapters for the chat of DIR/cmp and DIR/gen
"""

import argparse
import sys

import jax

from rhea_jax import assets, interchange, merged, weights
from rhea_jax.config import Memory
from rhea_jax.model import init_adapters
from rhea_jax.startup import in_one_line, prepare

_DTYPES = ("float32", "bfloat16", "float16")


def parse(argv):
    """The command's flags.  Raises: ValueError for flags that do not go together."""
    parser = argparse.ArgumentParser(prog="train.export", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="the base: as the chat's --model")
    parser.add_argument("--adapters", help="a folder with adapters for this model")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--peft", metavar="OUT", help="a new folder for PEFT")
    what.add_argument("--merge", metavar="OUT", help="a new folder for the merged model")
    what.add_argument("--from-peft", metavar="DIR", help="a folder with cmp and gen, each a PEFT folder")
    parser.add_argument("--out", help="a new folder for what --from-peft reads")
    parser.add_argument("--latents", type=int, metavar="M",
                        help="with --from-peft, without its latents.safetensors: so many untrained ones")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="of merged weights")
    parser.add_argument("--offline", action="store_true", help="no network")
    args = parser.parse_args(argv[1:])
    wanted, other = ("out", "adapters") if args.from_peft else ("adapters", "out")
    if getattr(args, wanted) is None or getattr(args, other) is not None:
        does = "--from-peft" if args.from_peft else "--peft" if args.peft else "--merge"
        raise ValueError(f"{does} needs --{wanted} and no --{other}")
    return args


def main(argv):
    """Runs the command; returns the exit code."""
    return in_one_line(lambda: _run(parse(argv)))


def _run(args):
    prepare()
    path = assets.resolve(args.model, args.offline)
    model = weights.read_config(path)
    params = weights.load(path, model)
    bases = weights.fingerprints(model, params)
    if args.from_peft:
        fresh = None
        if args.latents is not None:
            fresh = init_adapters(model, Memory(latents=args.latents), params, jax.random.key(0))
        adapters, card = interchange.import_peft(args.from_peft, model, bases, fresh)
        card = {"base": bases[0], "bases": bases, "weights": args.model} | card
        with interchange.new_folder(args.out) as new:
            weights.save_adapters(new, adapters, card, "float32")
    else:
        adapters, card = weights.load_adapters(args.adapters, model, bases)
        if args.peft:
            interchange.export_peft(args.peft, model, adapters, args.model, card)
        else:
            merged.export_merged(args.merge, path, model, params, adapters, card, args.dtype)
    print(f"wrote {args.peft or args.merge or args.out}")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
