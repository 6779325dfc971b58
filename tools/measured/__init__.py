# SPDX-License-Identifier: Apache-2.0
"""Measured collectives: readers of their formats, judged against predictions, fitted, drawn."""
