"""The register of evidence: every table and figure of five papers, and how the figures here are compared with it."""

from __future__ import annotations

from scripts.papers.register import garimella, hummingbird, impala, lookups, nghe2

PAPERS = (hummingbird.PAPER, nghe2.PAPER, lookups.PAPER, impala.PAPER, garimella.PAPER)
