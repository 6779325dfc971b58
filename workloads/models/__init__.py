# SPDX-License-Identifier: Apache-2.0
"""Shipped model shapes, one JSON file of Hugging Face ``config.json`` fields each.

Dropping another file here ships another model; ``source`` says where its fields were published.
"""
