"""Names the most likely cause of a failure, from evidence."""

from batchproof.diagnosis.diagnose import diagnose
from batchproof.findings.causes import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
