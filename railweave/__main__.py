# SPDX-License-Identifier: Apache-2.0
"""``railweave`` and ``python -m railweave``: the command line."""

from __future__ import annotations

import gc
import os
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code."""
    # Imports make many objects that stay: looking for garbage among them is a tenth of a short run.
    gc.set_threshold(50_000, 20, 20)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with the stream closed (>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    try:
        from railweave.tools.cli import run_command_line

        return run_command_line(sys.argv[1:])
    except KeyboardInterrupt:  # while still importing
        return 130


if __name__ == "__main__":
    sys.exit(main())
