"""Why did it fail? The most likely cause of a failure, named from evidence."""

from harness.diagnosis.diagnose import diagnose
from harness.diagnosis.finding import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
