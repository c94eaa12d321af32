"""Runs every test that asks for a `trial` once per engine and model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchproof.api import Capability
from batchproof.errors import EngineHang, UnsupportedModelError
from batchproof.plugin.selection import LAB, SELECTION
from batchproof.promises import Promise
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.trial import Trial

# Learned positions; exact arithmetic, with RoPE; a window.
THREE_MODELS = ("gpt2-random", "llama-hash", "mistral-window")
# What one model and three models come to for the built-in engines: the quickest, and with it one that
# has RoPE and a window. The tests of its promise catch every planted fault but one on one of the two.
QUICKEST_MODEL = "gpt2-random"
TWO_MODELS = (QUICKEST_MODEL, "mistral-window")


@pytest.fixture(scope="session")
def laboratory(request: pytest.FixtureRequest) -> Laboratory:
    """Returns models and oracles, which all tests of the session share."""
    return request.config.stash[LAB]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrizes each test that asks for a `trial` with engines and models."""
    if "trial" not in metafunc.fixturenames:
        return
    selection = metafunc.config.stash[SELECTION]
    pairs = [
        (spec, model_name)
        for spec in selection.engines
        # The yardstick measured by itself: unless asked for by name, one quick model is enough.
        for model_name in (
            selection.model_names[-1:]
            if spec.name in selection.yardsticks
            else _models_for(metafunc, spec)
        )
    ]
    metafunc.parametrize("trial", pairs, ids=[f"{s.name}-{m}" for s, m in pairs], indirect=True)


def _models_for(metafunc: pytest.Metafunc, spec: EngineSpec) -> tuple[str, ...]:
    names = metafunc.config.stash[SELECTION].model_names
    if metafunc.definition.get_closest_marker("one_model"):
        return (_first_served(metafunc.config, spec, names),)
    is_varied = metafunc.definition.get_closest_marker("three_models")
    if is_varied and not metafunc.config.getoption("--model"):  # a model asked for is never left out
        varied = THREE_MODELS if metafunc.config.getoption("--engine") else TWO_MODELS
        return tuple(name for name in names if name in varied)
    return names


def _first_served(config: pytest.Config, spec: EngineSpec, names: tuple[str, ...]) -> str:
    """Returns the first model that the engine serves, for an engine that was named and may refuse
    some. The built-in engines serve all models and are not built for this question.
    """
    if not config.getoption("--engine"):
        return QUICKEST_MODEL if QUICKEST_MODEL in names else names[0]
    lab = config.stash[LAB]
    for name in names:
        try:
            lab.capabilities(spec, lab.subject(name))
        except UnsupportedModelError:
            continue
        except (Exception, SystemExit, EngineHang):  # its tests will show it
            return name
        return name
    return names[0]


@pytest.fixture
def trial(request: pytest.FixtureRequest, laboratory: Laboratory) -> Iterator[Trial]:
    """Yields one engine on one model. Skips, by name, if the engine lacks what the test needs."""
    spec, model_name = request.param
    promises = [Promise[mark.kwargs["id"]] for mark in request.node.iter_markers("promise")]
    assert promises, (
        f"{request.node.nodeid} must say which promise it checks: @pytest.mark.promise(id=...)"
    )
    record: dict[str, object] = {
        "engine": spec.name,
        "model": model_name,
        "promises": [promise.id for promise in promises],
    }
    request.node.user_properties.append(("batchproof", record))
    try:
        capabilities = laboratory.capabilities(spec, laboratory.subject(model_name))
    except UnsupportedModelError as error:
        record["refused"] = str(error)
        pytest.skip(f"refused: {error}")
    for mark in request.node.iter_markers("needs"):
        for name in mark.args:
            if Capability(name) not in capabilities:
                record["lacks"] = name
                pytest.skip(f"engine {spec.name!r} has no capability {name!r}")
    oracle = laboratory.oracle(model_name)
    adequacy = laboratory.adequacy(oracle.subject)
    if adequacy is not None:
        record["adequacy"] = str(adequacy)
        record["is_adequate"] = adequacy.is_adequate
    trial = Trial(laboratory, spec, oracle, capabilities, promises[0])
    record["ledger"] = vars(trial.ledger)  # live: they fill while the test runs
    record["has_happened"] = trial.has_happened
    yield trial
    if oracle.subject.is_embedded:  # a large model takes too long to look at after each test
        laboratory.look_after(spec, oracle.subject, "during the test")
