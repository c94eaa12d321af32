"""The kernels that are compiled where they run: what they compute, and what is done without them."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from batchproof.api import EngineConfig, Request
from batchproof.errors import ConfigError, UnsupportedModelError
from batchproof.models.catalogue import load_model
from batchproof_paged import native, native_build, paged
from batchproof_paged.attention import AttentionForm
from batchproof_paged.batch import RaggedBatch
from batchproof_paged.kernels import LayerCache
from batchproof_paged.lanes import LanePool
from batchproof_paged.native_build import NotBuiltError, built, compiler
from batchproof_paged.rows import Rows, Scheduled
from tests.selftest.paged.rehearsal import Rehearsal, Shape, attend_slowly, sequence, tell

CPU = torch.device("cpu")
needs_native = pytest.mark.skipif(not compiler(), reason="there is no C++ compiler")


@needs_native
@pytest.mark.parametrize("num_outputs", [1, 16, 37, 160])
@pytest.mark.parametrize("num_inputs", [1, 64, 77, 2100])  # the last are read in three stretches
def test_a_product_is_that_of_the_weights_and_each_row_has_its_own_bits(
    num_outputs: int, num_inputs: int
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(num_outputs, num_inputs), torch.randn(num_outputs)
    packed = native.pack(weight.t().contiguous().t())  # strided, as in a Conv1D
    rows = torch.randn(70, num_inputs) / num_inputs**0.5
    exact = rows.double() @ weight.double().t() + bias
    alone = torch.cat([native.multiply(each[None], packed, bias, num_outputs) for each in rows])
    torch.testing.assert_close(alone.double(), exact, rtol=1e-5, atol=1e-5)
    for num_rows in (2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 70):
        assert torch.equal(
            native.multiply(rows[:num_rows], packed, bias, num_outputs), alone[:num_rows]
        )
    plain = native.multiply(rows[None], packed, None, num_outputs)
    torch.testing.assert_close(plain[0].double(), exact - bias, rtol=1e-5, atol=1e-5)


FORMS = {
    "plain": AttentionForm(0.3),
    "window": AttentionForm(0.3, window=5),
    "softcap": AttentionForm(0.3, softcap=2.0),
    "sinks": AttentionForm(0.3, sinks=torch.linspace(-1, 3, 8)),
}


class BlankLanes(LanePool):
    """Its cells are NaN until a key or value is stored there; it is given strided heads."""

    def _allocate(self, *shape: int) -> LayerCache:
        made = super()._allocate(*shape)
        for cells in (made.keys, made.values):
            cells.fill_(float("nan"))
        return made

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, form: AttentionForm
    ) -> Tensor:
        strided = (each.mT.contiguous().mT for each in (query, key, value))
        return super().attend(layer, *strided, form)


SHAPES = Shape(8, 1, 64, 64), Shape(2, 4, 32, 80), Shape(1, 8, 20, 7)


@needs_native
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_lanes", [3, None], ids=["in its lane", "in other lanes"])
def test_a_token_sees_its_own_sequence_and_nothing_else(
    form: AttentionForm, shape: Shape, num_lanes: int | None
) -> None:
    """Prompts and contexts are longer than the kernel can hold scores at a time."""
    pool = BlankLanes(3, 4)
    rehearsal = Rehearsal(pool, shape, form, num_blocks=80, num_lanes=num_lanes)
    tell(rehearsal, (5, 150, 1, 70))


CUTS = (150,), (1,) * 150, (7, 64, 1, 1, 60, 17), (149, 1)


@needs_native
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_query_has_the_same_bits_however_its_sequence_is_cut_and_placed(
    form: AttentionForm, shape: Shape
) -> None:
    torch.manual_seed(0)
    query = torch.randn(150, shape.num_heads, shape.qk_dim)
    key = torch.randn(150, shape.num_kv_heads, shape.qk_dim)
    value = torch.randn(150, shape.num_kv_heads, shape.v_dim)
    answers = []
    for cut, lane in ((cut, lane) for cut in CUTS for lane in (0, 1)):
        pool, start, parts = LanePool(2, 16), 0, []
        # In lane 0 it is straight; else its blocks are those of the other lane.
        fed = sequence("a", lane)
        fed.token_ids = [1] * 150
        fed.block_table = [2 * column for column in range(10)]
        for length in cut:
            pool.begin(RaggedBatch.of(Rows.of([Scheduled(fed, start, length, True)])))
            part = slice(start, start + length)
            parts.append(pool.attend(0, query[part], key[part], value[part], form))
            start += length
        answers.append(torch.cat(parts))
    exact = attend_slowly(query, key, value, form)
    torch.testing.assert_close(answers[0].double(), exact, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(each, answers[0]) for each in answers)


@needs_native
def test_what_is_no_float_is_refused_before_it_is_misread() -> None:
    with pytest.raises(UnsupportedModelError, match=r"compute in float32, not in torch\.bfloat16"):
        native.multiply(torch.ones(1, 4).bfloat16(), native.pack(torch.ones(4, 4)), None, 4)
    model = load_model("llama-random", CPU, torch.bfloat16).model
    with pytest.raises(ConfigError, match=r"for a CPU and float32; the model is in torch\.bfloat16"):
        paged(model, EngineConfig(), backend="lanes")
    assert paged(model, EngineConfig()).generate([Request("a", (1, 2, 3), 4)])


@pytest.fixture
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Has the kernels looked for again, in a cache of their own; and once more at the end."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = (native._kernels, native.why_not)
    for each in known:
        each.cache_clear()
    yield
    for each in known:
        each.cache_clear()


@pytest.mark.usefixtures("_own_cache")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("", r"there is no C\+\+ compiler: neither CXX nor "),
        (f"{sys.executable} -c 'raise SystemExit(3)'", "the compiler .* fails: status 3"),
    ],
)
def test_without_a_compiler_torch_serves(given: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", given)
    monkeypatch.setattr(native_build, "COMPILERS", ())
    model = load_model("llama-random", CPU, torch.float32).model
    asked = [Request("a", (1, 2, 3), 4)]
    assert paged(model, EngineConfig()).generate(asked)
    with pytest.raises(ConfigError, match=f"backend=lanes cannot be had: .*{why}"):
        paged(model, EngineConfig(), backend="lanes")


@needs_native
@pytest.mark.usefixtures("_own_cache")
def test_what_was_compiled_is_kept_where_the_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "empty.cpp"
    source.write_text('extern "C" int one() { return 1; }')
    made = built(source, native.FLAGS, wanted=["-fno-such-flag"])
    assert made.parent == tmp_path / "batchproof" / "native"
    assert ctypes.CDLL(str(made)).one() == 1
    began = made.stat().st_mtime_ns
    assert built(source, native.FLAGS, wanted=["-fno-such-flag"]).stat().st_mtime_ns == began
    monkeypatch.setenv("XDG_CACHE_HOME", str(made))  # a file, in which there is no folder
    with pytest.raises(NotBuiltError, match="what is compiled cannot be kept"):
        built(source, native.FLAGS)
