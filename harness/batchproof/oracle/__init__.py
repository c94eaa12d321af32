"""Right answers and the tolerance that rounding needs, both measured on the model itself."""
