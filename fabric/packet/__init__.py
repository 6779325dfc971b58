# SPDX-License-Identifier: Apache-2.0
"""The packet engine: every frame, queue, pause and mark, in integer picoseconds."""
