# SPDX-License-Identifier: Apache-2.0
"""A fabric as a real, slowed-down Linux network, and real traffic over it."""
