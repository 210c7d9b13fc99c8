# SPDX-License-Identifier: Apache-2.0
"""jax_memory.py: what JAX takes of its share; prints one JSON object."""

import json
import sys

import jax
import jax.numpy as jnp


def main() -> None:
    """A product, and the allocator's own limit."""
    device = jax.devices("gpu")[0]
    a = jnp.ones((1024, 1024))
    total = float((a @ a).sum())
    limit = (device.memory_stats() or {}).get("bytes_limit")
    json.dump({"sum": total, "limit": limit}, sys.stdout)


if __name__ == "__main__":
    main()
