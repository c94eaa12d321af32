"""Why did it fail? The most likely cause of a failure, named from evidence."""

from harness.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
