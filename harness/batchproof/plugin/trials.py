"""Runs every test that asks for a `trial` once per engine and model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby

import pytest

from batchproof.api import Capability
from batchproof.cases.schema import Case
from batchproof.errors import EngineHang, EngineMissingError, UnsupportedModelError
from batchproof.findings.finding import Failure, Rule, Run, Scene, found
from batchproof.models.catalogue import ModelUnderTest
from batchproof.models.embedded import LONG_MODEL, NAN_MODEL, QUICKEST_MODEL, THREE_MODELS
from batchproof.oracle.oracle import Oracle
from batchproof.plugin.declared import DECLARED, SAYS_SO
from batchproof.plugin.failure_record import FIRST_CONTACT
from batchproof.plugin.items import IDENTITY, again, name_of, requirement_id
from batchproof.plugin.selection import LAB, SELECTION
from batchproof.plugin.xfails import known_failure_of
from batchproof.records.trial_record import TrialRecord
from batchproof.requirements.promises import Promise
from batchproof.run.call_notes import notes
from batchproof.run.failures import ConformanceFailure
from batchproof.run.laboratory import Laboratory
from batchproof.run.registry import EngineSpec
from batchproof.run.trial import Trial, subject_of

TRIAL = pytest.StashKey[Trial]()
# What three models come to for the built-in engines: beside learned positions in the quickest, RoPE and
# a window.
WINDOW_MODEL = "mistral-window"
VARIED = {"quick_models": (QUICKEST_MODEL, WINDOW_MODEL), "three_models": THREE_MODELS}  # by mark
FOR_ONE = {"long_model", "one_model"}  # marks: the first model that the engine serves is enough


@pytest.fixture(scope="session")
def laboratory(request: pytest.FixtureRequest) -> Laboratory:
    """Returns models and oracles, which all tests of the session share."""
    return request.config.stash[LAB]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "trial" not in metafunc.fixturenames:
        return
    selection = metafunc.config.stash[SELECTION]
    # Those of the test hide those of its module.
    marks = {mark.name: mark.args for mark in reversed([*metafunc.definition.iter_markers()])}
    is_for_one = bool(FOR_ONE & marks.keys()) and "on_model" not in marks
    pairs = []
    for spec in selection.engines:
        models = _models_for(metafunc, marks, spec)
        for model_name in models:
            served = pytest.mark.first_served if is_for_one and model_name == models[0] else ()
            pairs.append(pytest.param((spec, model_name), id=f"{spec.name}-{model_name}", marks=served))
    if not pairs:
        why = "the test is for models that --model leaves out"
        pairs = [pytest.param(None, id="no-model", marks=pytest.mark.skip(reason=why))]
    metafunc.parametrize("trial", pairs, indirect=True)


def _models_for(
    metafunc: pytest.Metafunc, marks: Mapping[str, Sequence[str]], spec: EngineSpec
) -> tuple[str, ...]:
    """Returns the models that the test's marks choose. A model that was asked for is never left out."""
    config, selection = metafunc.config, metafunc.config.stash[SELECTION]
    asked, is_free = selection.model_names, not config.getoption("--model")

    def possible(names: Sequence[str]) -> list[str]:
        return [name for name in names if is_free or name in asked]

    if spec.name in selection.yardsticks:
        # It is measured by itself, on one quick model, and serves one request at a time: it is left out
        # by tests about many, as curated cases are.
        is_about_many = {"long_model", "on_model"} & marks.keys() or "case" in metafunc.fixturenames
        return () if is_about_many else asked[-1:]
    if "on_model" in marks:
        return tuple(possible(marks["on_model"]))
    names = [name for name in asked if name != NAN_MODEL]
    if "long_model" in marks:
        names = [*possible([LONG_MODEL]), *names]
    varied = next((models for mark, models in VARIED.items() if mark in marks), None)
    if names and FOR_ONE & marks.keys():
        names = [_first_served(config, spec, names)]
    elif varied is not None and is_free:
        few = varied if config.getoption("--engine") else (WINDOW_MODEL,)
        names = [name for name in names if name in few]
    return tuple(dict.fromkeys((*names, *possible(marks.get("also_on", ())))))


def _first_served(config: pytest.Config, spec: EngineSpec, names: Sequence[str]) -> str:
    """Returns the first model that the engine serves, for an engine that was named and may refuse
    some. The built-in engines serve all models and are not built for this question."""
    if not config.getoption("--engine"):
        is_quick_enough = names[0] == LONG_MODEL or QUICKEST_MODEL not in names
        return names[0] if is_quick_enough else QUICKEST_MODEL
    lab = config.stash[LAB]
    for name in names:
        try:
            lab.capabilities(spec, lab.subject(name))
        except UnsupportedModelError:
            if name in config.stash[DECLARED][spec.name]:
                return name  # its tests will show it
            continue
        except (Exception, EngineHang):  # its tests will, too
            return name
        return name
    return names[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets the engines take turns within each test function, model by model and case by case: they need
    the same right answers, which each worker computes for what it is given.

    For a verdict all tests of a model follow each other: an engine may use again what it has built.
    """
    if config.getoption("--verdict"):
        items.sort(key=lambda item: _answers_of(item)[0])
    blocks = groupby(items, lambda item: item.nodeid.partition("[")[0])
    items[:] = chain.from_iterable(_in_turns(block) for _, block in blocks)


def _in_turns(block: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    turns: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in block:
        turns.setdefault(_answers_of(item), []).append(item)
    return chain.from_iterable(turns.values())


def _answers_of(item: pytest.Item) -> tuple[str, str]:
    """Returns the model and the other parameters; nothing for a test without a `trial`."""
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        match item.callspec.params.get("trial"):
            case EngineSpec(name=engine), str(model_name):
                return model_name, item.callspec.id.replace(f"{engine}-{model_name}", "", 1)
    return "", ""


@pytest.fixture
def trial(request: pytest.FixtureRequest, laboratory: Laboratory) -> Iterator[Trial]:
    """Yields one engine on one model. Skips, by name, if the engine lacks what the test needs."""
    item = request.node
    spec, model_name = request.param
    item.stash[IDENTITY] = identity = record_identity(item, spec, model_name)
    oracle = laboratory.oracle(model_name)
    known = known_failure_of(item)
    notes().change(  # for its report, if the engine takes the process along
        engine=spec.name,
        model=model_name,
        subject=subject_of(spec, oracle),
        workload=None,
        record=identity,
        report="",
        again=again(item),
        known=known and known.reason,
    )
    capabilities = _capabilities(item, laboratory, spec, oracle)
    lacks, words = _lack(request, laboratory, spec, oracle.subject, capabilities)
    if lacks:
        item.stash[IDENTITY] = replace(identity, lacks=lacks)
        pytest.skip(words)
    if Capability.TRACING not in capabilities:
        identity = replace(identity, promises=without_trace(identity.promises))
        item.stash[IDENTITY] = identity
    oracle = laboratory.oracle(model_name)  # another one, if the first contact damaged the model
    adequacy = laboratory.adequacy(oracle.subject)
    if adequacy is not None:
        is_adequate = adequacy.is_adequate
        item.stash[IDENTITY] = replace(identity, adequacy=str(adequacy), is_adequate=is_adequate)
    trial = Trial(laboratory, spec, oracle, Promise[identity.promises[0]], capabilities)
    item.stash[TRIAL] = trial
    yield trial
    if trial.subject.is_embedded:  # a large model takes too long to look at after each test
        laboratory.look_after(spec, trial.subject, "during the test")


def record_identity(item: pytest.Item, spec: EngineSpec, model_name: str) -> TrialRecord:
    """Returns the record of a test that has not begun: which test it is, on which engine and model."""
    assert isinstance(item, pytest.Function), "conformance tests are functions"
    promises = tuple(Promise[mark.kwargs["id"]].id for mark in item.iter_markers("promise"))
    assert promises, f"{item.nodeid} must say which promise it checks: @pytest.mark.promise(id=...)"
    given = item.callspec.params.items()
    return TrialRecord(
        engine=spec.name,
        model=model_name,
        promises=promises,
        function=item.originalname,
        parameters={name: value for name, value in given if isinstance(value, str | int | float)},
        name=name_of(item),
        requirement=requirement_id(item),
    )


def without_trace(promises: Iterable[str]) -> tuple[str, ...]:
    """Returns the promises that a test of these can decide on an engine without a trace."""
    decided = [Promise.P1 if Promise[each].is_shown_by_a_trace else Promise[each] for each in promises]
    return tuple(each.id for each in dict.fromkeys(decided))


def _capabilities(
    item: pytest.Item, laboratory: Laboratory, spec: EngineSpec, oracle: Oracle
) -> frozenset[Capability]:
    """Returns the capabilities of the engine. Skips the test if the engine refuses the model.
    Raises `ConformanceFailure` if it is declared to serve it, or hangs at first contact."""
    identity = item.stash[IDENTITY]
    try:
        return laboratory.capabilities(spec, oracle.subject)
    except UnsupportedModelError as error:
        item.stash[IDENTITY] = replace(identity, refused=str(error))
        source = item.config.stash[DECLARED][spec.name].get(oracle.subject.name)
        if not source or SAYS_SO not in item.stash or isinstance(error, EngineMissingError):
            pytest.skip(f"refused {oracle.subject.name}: {error}")
        name, why = oracle.subject.name, str(error)
        finding = found(Rule.MODEL_REFUSED, model=name, source=source, why=why)
    except EngineHang as hang:  # no `Exception`, which pytest would not forgive in a fixture
        # Its failure file needs an engine to name, which has shown no capability.
        promise = Promise[identity.promises[0]]
        item.stash[TRIAL] = Trial(laboratory, spec, oracle, promise, frozenset())
        finding = found(Rule.HANG, what=hang.what, evidence=hang.evidence)
    scene = Scene((Run(0, FIRST_CONTACT),))
    raise ConformanceFailure(Failure(finding, scene, subject_of(spec, oracle)))


def _lack(
    request: pytest.FixtureRequest,
    laboratory: Laboratory,
    spec: EngineSpec,
    subject: ModelUnderTest,
    capabilities: frozenset[Capability],
) -> tuple[str, str]:
    """Returns what the engine lacks for the test, and a sentence; empty texts if it lacks nothing.

    What the test `shows` it needs of an engine with a trace. Without one, the same workloads are served
    wherever the config asks for it, and right answers are right whether it happened or not. A yardstick
    has nothing to show.
    """
    is_yardstick = spec.name in request.config.stash[SELECTION].yardsticks
    has_evidence = Capability.TRACING in capabilities or is_yardstick
    for kind in ("needs", "shows") if has_evidence else ("needs",):
        for name in (name for mark in request.node.iter_markers(kind) for name in mark.args):
            if Capability(name) not in capabilities:
                return name, f"engine {spec.name!r} has no capability {name!r}"
    case = request.node.callspec.params.get("case")
    lacking = case.lacking(laboratory.offer(spec, subject)[1]) if isinstance(case, Case) else ()
    if lacking:
        return lacking[0], f"engine {spec.name!r} does not take such {' and '.join(lacking)}"
    return "", ""
