# SPDX-License-Identifier: Apache-2.0
"""The static checks of a design review, by theme; `railweave.topologies.checks` runs them."""
