"""How many examples the property tests try, and how Hypothesis goes about it."""

from hypothesis import HealthCheck, Phase, settings

from batchproof.errors import UsageError

PROFILES = {"quick": 4, "default": 10, "thorough": 400}  # examples of a test


def register_profiles() -> None:
    """Makes the profiles known to Hypothesis, in whatever process needs them."""
    for name, max_examples in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=max_examples,
            deadline=None,  # speed is measured by benchmarks, never asserted in tests
            report_multiple_bugs=False,
            # No explain phase: it reruns an engine for minutes, and a failure explains itself.
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
            # A trial is made for one test and holds no state of an example.
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        )


def require_profile(name: str) -> None:
    """Makes the profiles known. Raises `UsageError` if there is none of this name."""
    register_profiles()
    if name not in settings._profiles:
        raise UsageError(f"--hypothesis-profile {name!r} is unknown; choose {', '.join(PROFILES)}")
