# SPDX-License-Identifier: Apache-2.0
"""The report of a run: one HTML file that needs no network."""
