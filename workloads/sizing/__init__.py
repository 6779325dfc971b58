# SPDX-License-Identifier: Apache-2.0
"""What a model needs to serve a trace, in closed form: memory, time, network, before any run."""
