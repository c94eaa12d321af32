"""The plugin in a process that runs tests: with torch, engines and a laboratory.

A controller of workers does without, or its workers would wait until it has imported torch.
"""

import gc
import sys
from textwrap import shorten

import pytest
import torch
from hypothesis import settings

from batchproof.api import Capability
from batchproof.checks.environment import compute_exactly
from batchproof.errors import (
    EngineHang,
    EngineMissingError,
    OracleError,
    UnsupportedModelError,
    UsageError,
)
from batchproof.invariance.measure import declared_grades
from batchproof.models.catalogue import resolve_device, resolve_dtype
from batchproof.models.embedded import EMBEDDED
from batchproof.plugin import isolation, trials, verdicts
from batchproof.plugin.declared import choose_tests
from batchproof.plugin.profiles import register_profiles
from batchproof.plugin.selection import LAB, Selection
from batchproof.requirements.promises import Promise
from batchproof.run.devices import make_current
from batchproof.run.failures import place_words
from batchproof.run.laboratory import Laboratory
from batchproof.run.trial import Trial

LONGEST_ERROR = 400  # characters: one that shows its model fills a page

register_profiles()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Chooses the tests that say what an engine refuses.

    Takes modules and tests out of sight of the garbage collector, once in a process: they stay, and
    each collection that walks them takes half a second."""
    choose_tests(session.items)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def begin(config: pytest.Config, selection: Selection) -> None:
    """Prepares torch and the laboratory, and registers the plugins of such a process. Raises
    `UsageError`."""
    device = resolve_device(selection.device)
    make_current(device)
    compute_exactly()  # before any engine is built
    if selection.num_threads is not None:
        torch.set_num_threads(selection.num_threads)  # before any engine can change them
    terms = (device, resolve_dtype(selection.dtype), selection.time_limit_s, selection.precision)
    lab = config.stash.get(LAB, Laboratory(*terms))  # a suite run may bring a shared one
    config.stash[LAB] = lab
    isolation.share_lost_engines(config, lab)
    _try_what_was_named(config, selection, lab)
    for module in (trials, verdicts, sys.modules[__name__]):
        config.pluginmanager.register(module, module.__name__)
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("default")  # where CI is set, Hypothesis has chosen one of its own


def _try_what_was_named(config: pytest.Config, selection: Selection, lab: Laboratory) -> None:
    """Loads the models and builds the engines that the user named, so that a broken one is reported
    in a sentence and not as many failures. The laboratory keeps what is loaded."""
    if not (config.getoption("--engine") or config.getoption("--model")):
        return
    lab.subject(selection.model_names[0])  # before it is needed, for its errors
    missing: list[EngineMissingError] = []
    for name in selection.model_names:
        if name not in EMBEDDED:
            try:
                lab.oracle(name).right_tokens((0,), 1)
            except (UnsupportedModelError, OracleError) as error:  # without one no engine can be judged
                raise UsageError(f"--model {name!r} has no right answers: {error}") from error
    for spec in selection.engines:
        try:
            subject = lab.subject(selection.model_names[0])  # another one, if an engine damaged it
            if Capability.INVARIANCE in lab.capabilities(spec, subject):
                declared_grades(Trial(lab, spec, lab.oracle(subject.name), Promise.P20))
        except EngineMissingError as error:
            missing.append(error)
        except (UnsupportedModelError, EngineHang):
            continue  # an answer of the engine; the tests show it
        except UsageError:
            raise
        except Exception as error:
            words = shorten(f"{type(error).__name__}: {error}", LONGEST_ERROR, placeholder=" ...")
            words += place_words(error)
            raise UsageError(f"--engine {spec.name!r}: its factory raised {words}") from error
    if missing and len(missing) == len(selection.engines):
        raise UsageError(str(missing[0]))
