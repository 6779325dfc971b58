# SPDX-License-Identifier: Apache-2.0
"""Predict what NCCL takes for an operation on known hardware, without a fabric.

The interface, which others rely on::

    profile = find_profile("h100")              # railweave.fabric.profiles; or load_profile(PATH)
    network = find_network("infiniband-400g")   # None within one NVLink or PCIe domain
    predict(
        profile, "all_reduce", size_bytes=2**30, nodes=2, gpus_per_node=8, network=network,
        launch="nccl-tests",                # one of LAUNCH_MODES
        algorithm="auto", protocol="auto",  # or names as NCCL has them: Ring, Tree, NVLS, ...
        nics_per_node=8,                    # None: a NIC per GPU
        nic_rate_bps=400 * 10**9,           # None: that of the network profile
    ) -> Prediction(time_s, algorithm, protocol, bound_s, parts)

``bound_s`` is what the bytes alone take on the wire, at the full rate of links and NICs; ``parts``
names what the time is made of (``launch``, ``steps``, ``bytes``, ``copy``, ...), in seconds.
"""
