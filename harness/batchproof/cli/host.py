"""`batchproof host ENGINE`: an engine behind the pipe of `docs/piped_engines.md`, in this process.

`--isolate` starts it for each engine of a benchmark; a program of one's own can speak to it as well.
"""

import argparse
from dataclasses import asdict

from batchproof.checks.environment import compute_exactly
from batchproof.errors import UnsupportedModelError, UsageError
from batchproof.models.embedded import DEFAULT_MODELS, EMBEDDED
from batchproof.run.capabilities import Offer, offer_of
from batchproof.run.registry import EngineSpec, engines_module, resolve_engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `batchproof host`."""
    parser.add_argument("engine", metavar="ENGINE", help="as for pytest --engine")
    parser.add_argument("--device", default="cpu", help="where its models are (default: cpu)")


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 once stdin is closed. Raises `UsageError` for an unknown engine."""
    compute_exactly()
    spec = resolve_engine(arguments.engine)
    offer = _offer(spec)
    names = sorted(each.value for each in offer.capabilities)
    module = engines_module("adapters.piped.host")
    taken = (sorted(offer.fields), asdict(offer.fields.limits), offer.block_size_multiple)
    hosted = module.Hosted(spec.name, spec.factory, names, *taken, arguments.device)
    module.serving.serve(lambda: hosted, {})
    return 0


def _offer(spec: EngineSpec) -> Offer:
    """Returns what the engine offers on the first embedded model that it serves."""
    refusals = []
    for name in DEFAULT_MODELS:
        model = EMBEDDED[name].build()
        try:
            return offer_of(spec.name, lambda config: spec.factory(model, config))  # noqa: B023
        except UnsupportedModelError as error:
            refusals.append(str(error))
    raise UsageError(f"engine {spec.name!r} serves none of {', '.join(DEFAULT_MODELS)}: {refusals[0]}")
