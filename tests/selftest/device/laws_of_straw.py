"""The rules that the straw device follows; collected only by name, in a process that has the device."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture
def there() -> Tensor:
    return torch.arange(6.0, device="straw").view(2, 3)


MIXES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda there, here: there + here,
    "embedding": lambda there, here: torch.nn.functional.embedding(here[0].long(), there.T),
    "index_copy": lambda there, here: there.index_copy(0, here[0, :1].long(), there[:1]),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_it_does_not_mix_with_the_cpu(there: Tensor, mix: Callable[[Tensor, Tensor], Tensor]) -> None:
    mix(there, there.clone())
    with pytest.raises(RuntimeError, match="same device"):
        mix(there, torch.zeros(2, 3))


def test_a_number_of_the_cpu_is_let_in_and_so_is_an_index(there: Tensor) -> None:
    assert (there + torch.tensor(1.0)).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert there[torch.tensor([1])].tolist() == [[3, 4, 5]]


def test_results_stay_there_and_are_the_cpus(there: Tensor) -> None:
    here = torch.arange(6.0).view(2, 3)
    assert (there @ there.T).device == torch.device("straw", 0)
    assert torch.equal((there @ there.T).cpu(), here @ here.T)
    assert torch.equal(there[:, 1:].softmax(1).cpu(), here[:, 1:].softmax(1))


def test_writing_through_a_view_and_into_an_empty_out_writes_here(there: Tensor) -> None:
    there[:, 1].fill_(9)
    assert there.tolist() == [[0, 9, 2], [3, 9, 5]]
    out = torch.empty(0, device="straw")
    torch.mul(there, 2, out=out)
    assert out.tolist() == [[0, 18, 4], [6, 18, 10]]
