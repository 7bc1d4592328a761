"""What entry points set, and what they leave to the user."""

import os
import subprocess
import sys

SHOW = "from rhea_jax.startup import prepare; prepare(); import os, jax; print(os.environ['XLA_PYTHON_CLIENT_MEM_FRACTION'], jax.config.jax_compilation_cache_dir)"


def show(tmp_path, **env):
    env = {**os.environ, "RHEA_CACHE": str(tmp_path), **env}
    done = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_pool_and_compilation_cache(tmp_path):
    assert show(tmp_path) == [".95", f"{tmp_path}/compiled"]
    assert show(tmp_path, XLA_PYTHON_CLIENT_MEM_FRACTION=".5", JAX_COMPILATION_CACHE_DIR="/tmp/mine") == [".5", "/tmp/mine"]


def test_transformers_without_torch_prints_nothing_at_the_user():
    code = "import sys; sys.modules['torch'] = None; import infer.session, infer.chat; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.stdout == "False\n" and done.stderr == ""
