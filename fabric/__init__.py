# SPDX-License-Identifier: Apache-2.0
"""The ground floor: units, devices, links, routing and the engines. Physics only."""
