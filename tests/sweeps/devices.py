"""Networks trained on several devices of jax against one: losses over many steps, and bytes held.

    python -m tests.sweeps.devices [--worlds 1,2,4] [--steps 100] [--networks mlp,cnn]

The devices are those that XLA makes of a CPU. The networks and their batches are those of
`tests/sweeps/processes.py`, of which every seventh has a number of rows that does not divide. The
state is on each device ("replicate"), spread over the rows' axis ("state"), or over an axis of its
own ("model"). Losses must be those of one device: within 5e-6 in float32, 1e-11 in float64.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

if __name__ == "__main__":  # before jax starts
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    os.environ["JAX_PLATFORMS"] = "cpu"

import sardonyx as sx
from tests.sweeps.processes import CASES, batches, problems

SHARDS = ("replicate", "state", "model")


def options(world: int, shard: str) -> dict[str, Any] | None:
    """The arguments of `prepare_training`; None where a world has no such sharding."""
    if world == 1:
        return {"devices": 1, "shard": "replicate"} if shard == "replicate" else None
    if shard == "model":
        return {"mesh": {"data": world // 2, "model": 2}}
    return {"devices": world, "shard": shard}


def losses_of(net: Any, every: list[Any], **how: Any) -> tuple[list[float], Any]:
    rep = sx.prepare_training(net, "jax", **how)
    return [float(np.mean(rep.step(batch)["loss"])) for batch in every], rep


def held(rep: Any) -> tuple[int, int]:
    """The bytes of state on the first device, and those that do not divide."""
    import jax

    first = jax.devices()[0]
    shards = [(v, s) for v in rep.variables.values() for s in v.value.addressable_shards]
    on_first = [(v, s) for v, s in shards if s.device == first]
    whole = sum(v.value.nbytes for v, s in on_first if s.data.shape == v.value.shape)
    return sum(s.data.nbytes for _, s in on_first), whole


def sweep(names: list[str], worlds: list[int], steps: int) -> Iterator[dict[str, Any]]:
    for name in names:
        make, how, shape, kind = CASES[name]
        net = sx.trainable(make(), **{"optimizer": sx.optim.adamw(1e-2), **how})
        every = batches(name, steps, net, shape, kind)
        expected, alone = losses_of(net, every)
        total = sum(v.value.nbytes for v in alone.variables.values())
        for world in worlds:
            for shard in SHARDS:
                chosen = options(world, shard)
                if chosen is None:
                    continue
                losses, rep = losses_of(net, every, **chosen)
                apart = float(np.abs(np.subtract(losses, expected)).max())
                own, whole = held(rep)
                parts = 2 if shard == "model" else world
                share = (total - whole) / parts + whole if shard != "replicate" else total
                yield {"name": name, "world": world, "shard": shard, "apart": apart,
                       "held": own, "share": share}  # fmt: skip


def wrong_in(row: dict[str, Any]) -> list[str]:
    wrong = problems({**row, "shard": ""}, row["world"])
    if row["held"] > 1.05 * row["share"]:
        wrong.append(f"{row['held']:,} bytes of state where {row['share']:,.0f} are its share")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--worlds", default="1,2,4")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--networks", default=",".join(CASES).replace(", ", ";"))
    chosen = parser.parse_args()
    names = [n.replace(";", ", ") for n in chosen.networks.split(",")]
    worlds = [int(n) for n in chosen.worlds.split(",")]
    failed = count = 0
    for row in sweep(names, worlds, chosen.steps):
        wrong = wrong_in(row)
        failed += bool(wrong)
        count += 1
        words = "; ".join(wrong) or "same"
        facts = f"losses {row['apart']:.1e}, {row['held']:,} bytes"
        print(f"{row['world']}  {row['name']:20} {row['shard']:10} {facts}: {words}", flush=True)
    print(f"{failed} of {count} differ")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
