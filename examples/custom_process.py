# SPDX-License-Identifier: Apache-2.0
"""A process of one's own over the fabric: a pipeline that computes while it sends.

Eight GPUs of host h0 take turns: each computes for a while, then ships its activations to the GPU
of the same rank on h4. Meanwhile one GPU of h1 pulls a checkpoint through the same rail. The
process is plain SimPy; only ``engine.send`` and ``engine.execute`` touch the network.
"""

import railweave

COMPUTE_PS = railweave.parse_time_ps("200us")
ACTIVATIONS_BYTES = railweave.parse_size_bytes("64MiB")
CHECKPOINT_BYTES = railweave.parse_size_bytes("1GiB")


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
        took, bound = (railweave.format_time(ps) for ps in (record.fct_ps, record.bound_ps))
        print(f"rank {rank}: sent in {took}, no faster than {bound}")
    receivers = [fabric.device(f"h4/gpu{rank}") for rank in range(8)]
    schedule = railweave.plan("all_reduce", ranks=8, size_bytes=ACTIVATIONS_BYTES)
    done = yield engine.execute(schedule, receivers, tag="all_reduce")
    print(f"all_reduce: {railweave.format_time(done.end_ps - done.start_ps)}")


def checkpoint(engine, fabric):
    """Pull a checkpoint over rail 3, in the way of rank 3's activations."""
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
    topology = railweave.load_topology("lab-8")
    fabric = railweave.build_topology(topology)
    env = railweave.FabricEnvironment()
    engine = railweave.make_engine(
        "fluid", env, fabric, railweave.Routing(fabric), railweave.NetworkSettings()
    )
    env.process(checkpoint(engine, fabric))
    env.run(env.process(pipeline(env, engine, fabric)))

    wire_bytes = engine.counters().wire_bytes
    hottest = int(wire_bytes.argmax())
    print(f"hottest link: {fabric.link_name(hottest)}, {wire_bytes[hottest]} wire bytes")
    print(f"time passed: {railweave.format_time(env.now)}")


if __name__ == "__main__":
    main()
