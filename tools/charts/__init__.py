# SPDX-License-Identifier: Apache-2.0
"""Charts of runs as SVG, written by railweave itself."""
