# SPDX-License-Identifier: Apache-2.0
"""Disaggregated LLM serving: prefill on one pool, decode on another, the cache in between."""
