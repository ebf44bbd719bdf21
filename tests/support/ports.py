"""Ports that are held from their choice on: no other test, and no program of scripts/, is given one of them."""

from __future__ import annotations

from scripts.bench.link import free_port

__all__ = ["free_port"]
