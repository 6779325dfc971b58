# SPDX-License-Identifier: Apache-2.0
"""Request traces: when requests arrive, how many tokens each reads and writes, what they share.

`read_trace` reads the Azure LLM, Mooncake, BurstGPT, ``vllm bench serve`` and railweave's own
formats by the same rules; each format is one module of this package.
"""

from railweave.workloads.traces.azure import AZURE_HEADER, write_azure_trace
from railweave.workloads.traces.conversations import (
    MOONCAKE_LIKE,
    ConversationMoments,
    generate_conversations,
    write_mooncake_trace,
)
from railweave.workloads.traces.jsonl import write_jsonl_trace
from railweave.workloads.traces.reading import read_trace
from railweave.workloads.traces.request import Trace, TraceRequest
from railweave.workloads.traces.reuse import PrefixReuse, prefix_reuse
from railweave.workloads.traces.synthetic import (
    AZURE_CONV,
    LengthMoments,
    TraceMoments,
    generate_trace,
)

__all__ = [
    "AZURE_CONV",
    "AZURE_HEADER",
    "MOONCAKE_LIKE",
    "ConversationMoments",
    "LengthMoments",
    "PrefixReuse",
    "Trace",
    "TraceMoments",
    "TraceRequest",
    "generate_conversations",
    "generate_trace",
    "prefix_reuse",
    "read_trace",
    "write_azure_trace",
    "write_jsonl_trace",
    "write_mooncake_trace",
]
