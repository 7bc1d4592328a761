"""The command line of an entry point: a config file with get_config(), its fields as flags, and plain flags beside them."""

import dataclasses
import re

from absl import flags
from ml_collections import config_flags

from rhea_jax import config as configs

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "a file with get_config(); --config.memory.tau_low=.4 overrides a field")
flags.DEFINE_bool("help", False, "this text", short_name="h")


def read(argv, default):
    """The fields that the command line asks for, by name, from --config or the default file; `FLAGS` holds the rest.

    Raises: ValueError naming the flag or field, its value, what is allowed.
    """
    if not any(re.match(r"--?config(=|$)", a) for a in argv):
        argv = [argv[0], f"--config={default}", *argv[1:]]
    for arg in argv:
        _check_field(arg)
    try:
        rest = FLAGS(argv)
        values = dict(FLAGS.config)
    except (flags.Error, AttributeError, KeyError, TypeError, OSError, SyntaxError, ImportError) as error:
        raise ValueError("--config: " + " ".join(str(error).replace("\\'", "").split())) from None
    if len(rest) > 1:
        raise ValueError(f"{rest[1]!r} is no flag; --help lists them")
    return values


def _check_field(arg):
    """Raises ValueError for --config.x.y=... where there is no such field: ml_collections names only what it has not."""
    if not (found := re.match(r"--?config\.([\w.]+)", arg)):
        return
    at = configs.Config()
    for name in found[1].split("."):
        known = [f.name for f in dataclasses.fields(at)] if dataclasses.is_dataclass(at) else []
        if name not in known:
            allowed = f" for {name!r}: {', '.join(known)}" if known else ": nothing behind a plain field"
            raise ValueError(f"--config.{found[1]} is not a field; allowed{allowed}")
        at = getattr(at, name)


def usage(about, *names):
    """What `--help` prints: a page's docstring and these flags."""
    return "\n".join([about, *(f"  --{n:<11} {FLAGS[n].help}" for n in sorted(("config", "help", *names)))])
