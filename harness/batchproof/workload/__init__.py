"""What an engine is asked: workloads as values, generated, crossed, and written as YAML."""
