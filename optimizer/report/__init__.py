"""What is told about a recommendation: the words, the figures and the page that holds them.

``page.report_page`` and the figures draw with matplotlib, which takes longer to import than most commands to answer, so that they
are imported from their modules.
"""

from __future__ import annotations

from sluice.optimizer.report.alternatives import Alternative, alternatives
from sluice.optimizer.report.documents import answer_document, cost_document, run_document
from sluice.optimizer.report.evidence import Seen, simulate_setting
from sluice.optimizer.report.wording import headline, kept, proof, saving, verdict

__all__ = [
    "Alternative",
    "Seen",
    "alternatives",
    "answer_document",
    "cost_document",
    "headline",
    "kept",
    "proof",
    "run_document",
    "saving",
    "simulate_setting",
    "verdict",
]
