# SPDX-License-Identifier: Apache-2.0
"""A process of one's own over the fabric: compute and send in turn, past a checkpoint.

The eight GPUs of host h0 take turns: each computes for a while, then ships its activations to the
GPU of the same rank on h4. Meanwhile a checkpoint flows from h1 to one of those GPUs and takes half
of its rail. The processes are plain SimPy; only ``engine.send`` and ``engine.execute`` touch the
network.
"""

import railweave

COMPUTE_PS = railweave.parse_time_ps("200us")
ACTIVATIONS_BYTES = railweave.parse_size_bytes("64MiB")
CHECKPOINT_BYTES = railweave.parse_size_bytes("1GiB")


def ms(time_ps):
    """Write a time in milliseconds."""
    return f"{time_ps / 1e9:.3f} ms"


def pipeline(env, engine, fabric):
    """Compute and send on each rank in turn, then all-reduce over the eight receivers."""
    for rank in range(8):
        yield env.timeout(COMPUTE_PS)
        record = yield engine.send(
            railweave.Flow(
                id=f"activations{rank}",
                src=fabric.device(f"h0/gpu{rank}"),
                dst=fabric.device(f"h4/gpu{rank}"),
                size_bytes=ACTIVATIONS_BYTES,
                tag="activations",
            )
        )
        print(f"rank {rank}: sent in {ms(record.fct_ps)}, at best {ms(record.bound_ps)}")
    receivers = [fabric.device(f"h4/gpu{rank}") for rank in range(8)]
    schedule = railweave.plan("all_reduce", ranks=8, size_bytes=ACTIVATIONS_BYTES)
    done = yield engine.execute(schedule, receivers, tag="all_reduce")
    print(f"all_reduce: {ms(done.end_ps - done.start_ps)}, at best {ms(done.bound_ps)}")


def checkpoint(engine, fabric):
    """Send a checkpoint over rail 3, in the way of rank 3's activations."""
    yield engine.send(
        railweave.Flow(
            id="checkpoint",
            src=fabric.device("h1/gpu3"),
            dst=fabric.device("h4/gpu3"),
            size_bytes=CHECKPOINT_BYTES,
            tag="checkpoint",
        )
    )


def main():
    topology = railweave.load_topology("h100-rail-8")
    fabric = railweave.build_topology(topology)
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine(
        "fluid", env, fabric, railweave.Routing(fabric), railweave.NetworkSettings()
    )
    env.process(checkpoint(engine, fabric))
    env.run(env.process(pipeline(env, engine, fabric)))

    wire_bytes = engine.counters().wire_bytes
    hottest = int(wire_bytes.argmax())
    print(f"hottest link: {fabric.link_name(hottest)}, {wire_bytes[hottest] / 1e6:.1f} MB")
    print(f"time passed: {ms(env.now)}")


if __name__ == "__main__":
    main()
