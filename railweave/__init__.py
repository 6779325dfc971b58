# SPDX-License-Identifier: Apache-2.0
"""railweave: the network fabric and collective-traffic emulator for AI clusters."""
