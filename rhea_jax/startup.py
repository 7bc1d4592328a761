"""What every entry point does before the first array: allocator pool, compilation cache, a word on an unused GPU."""

import os
import sys
from pathlib import Path

import platformdirs


def cache_folder():
    """Where downloads and compiled programs are kept: RHEA_CACHE, or the user's cache folder."""
    return Path(os.environ.get("RHEA_CACHE") or platformdirs.user_cache_dir("rhea_jax"))


def prepare():
    """Sets what the user has not set: 95% of the device's memory for the pool, and a persistent compilation cache."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".95")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    if Path("/dev/nvidia0").exists() and jax.default_backend() == "cpu" and not os.environ.get("JAX_PLATFORMS"):
        print("an NVIDIA device is here but JAX does not see it: pip install -e '.[cuda12]'", file=sys.stderr)


def in_one_line(main):
    """The exit code of an entry point: a user's or a file's mistake, a ValueError, is one line and 2."""
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def native_dtype():
    """The dtype that the device computes natively: bfloat16 on TPU and on GPUs since Ampere, else float32.

    A CPU without bfloat16 units runs bfloat16 slower than float32 (docs/LOG.md).
    """
    import jax

    device = jax.devices()[0]
    if device.platform == "tpu":
        return "bfloat16"
    if device.platform == "gpu":
        return "bfloat16" if float(getattr(device, "compute_capability", 0)) >= 8 else "float16"
    return "float32"
