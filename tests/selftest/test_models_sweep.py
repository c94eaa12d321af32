"""The sweep over transformers' causal LMs: what it makes small, how it judges, what it survives."""

from pathlib import Path

import pytest
import transformers

from batchproof.__main__ import main
from batchproof.api import EngineConfig
from batchproof.errors import UnsupportedModelError
from batchproof.places import ROOT
from batchproof_lab.model_sweep.sweep_command import MODEL_SWEEP, models_page
from batchproof_lab.model_sweep.toy_check import ToyTask, ToyVerdict, check_toy
from batchproof_lab.model_sweep.toys import Toy, model_types, toys_of
from batchproof_paged import paged
from tests.selftest.conftest import IS_TESTED_TRANSFORMERS

pytestmark = pytest.mark.usefixtures("one_thread")
RESULTS = ROOT / "results" / "models.json"


def toy(name: str) -> Toy:
    """As the table names it."""
    return next(each for each in toys_of(name.partition(", ")[0]) if str(each) == name)


def test_the_results_are_whole_hold_nothing_wrong_and_are_those_of_their_page() -> None:
    record = MODEL_SWEEP.read(RESULTS)
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == models_page(record)
    assert record.is_complete
    assert "WRONG" not in {each.verdict for each in record.toys}
    served = sum(each.verdict == "served" and not each.form for each in record.toys)
    assert record.counts.types["served"] == served >= 150
    if record.made.versions["transformers"] != transformers.__version__:
        pytest.skip(f"results/models.json is of another version than {transformers.__version__}")
    assert [each.model_type for each in record.toys if not each.form] == list(model_types())


@pytest.mark.parametrize(
    ("name", "engine", "verdict", "reason"),
    [
        ("gemma2", "paged", ToyVerdict.SERVED, ""),
        ("mamba", "paged", ToyVerdict.SERVED, "it carries states"),
        ("lfm3", "ragged", ToyVerdict.REFUSED, "layers of type conv"),
        ("bart", "paged?feed=packed", ToyVerdict.REFUSED, "in a batch its logits differ"),
        ("llama, dynamic RoPE", "static", ToyVerdict.REFUSED, "'dynamic' depends on the whole batch"),
        ("moshi", "reference", ToyVerdict.UNPROVEN, "off one float64 pass"),
        ("musicgen", "paged", ToyVerdict.UNBUILDABLE, "has no attribute 'dropout'"),
        ("llama", "fault:mask_ignores_sequence", ToyVerdict.WRONG, "P1: request"),
    ],
)
def test_each_verdict_has_a_toy_that_gets_it(
    name: str, engine: str, verdict: ToyVerdict, reason: str
) -> None:
    if not IS_TESTED_TRANSFORMERS and name in ("lfm3", "recurrent_gemma", "musicgen"):
        pytest.skip("older versions of transformers lack the type, or serve it otherwise")
    finding = check_toy(ToyTask(toy(name), engine))
    assert (finding.verdict, reason in finding.reason) == (verdict, True), finding.reason
    if verdict is ToyVerdict.SERVED:
        assert finding.num_tokens >= 44
        assert finding.worst is not None
        assert 0 < finding.worst < 8
        assert finding.worst_bfloat16 is None or 0 < finding.worst_bfloat16 < 3


# In the first transformers has the window in the mask, but does not pass it to the attention function.
@pytest.mark.parametrize("name", ["phimoe, with a window", "bert, both ways"])
def test_a_mask_that_attention_is_not_told_of_is_refused_and_the_model_keeps_its_attention(
    name: str,
) -> None:
    model = toy(name).build(seed=0)
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match="its mask differs from what the attention"):
        paged(model, EngineConfig(), feed="packed")
    assert model.config._attn_implementation == before


@pytest.mark.usefixtures("one_process")
def test_a_sweep_is_written_and_wrong_engines_fail_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--jobs=1", f"--output={tmp_path}"]
    assert main(["lab", "models", "gpt2", "recurrent_gemma", *options]) == 0
    record = MODEL_SWEEP.read(tmp_path / "models-partial.json")
    assert record.counts.types == dict.fromkeys(ToyVerdict, 0) | {"served": 1, "refused": 1}
    assert [each.model_type for each in record.toys] == ["gpt2", "gpt2", "recurrent_gemma"]
    text = (tmp_path / "models-partial.md").read_text(encoding="utf-8")
    assert f"of transformers {transformers.__version__}: 1 served, 1 refused, 0 WRONG." in text
    assert "| gpt2, scaled by layer | served |" in text
    assert main(["lab", "models", "gpt_bigcode", "--engine=fault:mask_ignores_sequence", *options]) == 1
    assert "WRONG gpt_bigcode: P1: request" in capsys.readouterr().out
