# SPDX-License-Identifier: Apache-2.0
"""Map the five rooms of the house into the one package ``railweave``.

The rooms lie at the top of the checkout, yet must never be installed as top-level packages (the
SSH library ``fabric`` would be overwritten). Computed here so that no sub-package is forgotten.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
ROOMS = ("fabric", "topologies", "collectives", "workloads", "tools")

packages = ["railweave"]
package_dir = {"railweave": "railweave"}
for room in ROOMS:
    package_dir[f"railweave.{room}"] = room
    packages.append(f"railweave.{room}")
    for found in find_packages(str(ROOT / room)):
        packages.append(f"railweave.{room}.{found}")
        package_dir[f"railweave.{room}.{found}"] = f"{room}/{found.replace('.', '/')}"

setup(packages=packages, package_dir=package_dir)
