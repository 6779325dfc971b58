# SPDX-License-Identifier: Apache-2.0
"""The probe that measures collectives on real machines: one file, to be copied to a cluster."""
