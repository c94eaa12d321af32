"""Why did it fail? The most likely cause of a failure, named from evidence."""

from batchproof.diagnosis.diagnose import diagnose
from batchproof.findings.causes import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
