"""Why did it fail? The most likely cause of a failure, named from evidence."""

from batchproof.causes import Diagnosis
from batchproof.diagnosis.diagnose import diagnose

__all__ = ["Diagnosis", "diagnose"]
