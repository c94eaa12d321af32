"""`batchproof.toml` and `[tool.batchproof]`: what flags say, with a place for each mistake."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from batchproof.cli import config_file
from batchproof.errors import UsageError
from batchproof.validation.toml_files import read_toml
from tests.selftest.conftest import HEAD, RIGHT, RunSuite


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = 1\na = 2\n", ":2: this is no valid TOML: Cannot overwrite a value"),
        ("a = 1\nb = [1,\n\n", ":3: this is no valid TOML: Invalid value"),
    ],
)
def test_a_file_that_is_no_toml(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as caught:
        read_toml(tmp_path / "x.toml", "x")
    assert f"x.toml{words}" in str(caught.value)


CHOSEN = 'engine = "static"\nmodel = ["gpt2-random"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle = 1", "batchproof.toml:3: the configuration has no key 'modle'; do you mean model"),
        ('dtype = "float8"', "--dtype 'float8' is unknown; choose one of float32"),
        ('dtype = ["float32", "float64"]', "batchproof.toml:3: dtype is a list, but must be one value"),
        ('isolate = "no"', "batchproof.toml:3: isolate is 'no', a text, but must be true or false"),
        ('jobs = "many"', "jobs is 'many', a text, but must be a whole number, 'auto' or 'logical'"),
    ],
)
def test_a_wrong_key_is_named(text: str, words: str, run_suite: RunSuite) -> None:
    Path("batchproof.toml").write_text(CHOSEN + text)
    session = run_suite("--device=cpu", defaults=())
    session.require_usage_error(words)


def test_the_file_is_read_and_its_stale_failure_fails(run_suite: RunSuite, tmp_path: Path) -> None:
    (tmp_path / "batchproof.toml").write_text(
        f'{CHOSEN}table = "t.json"\n'
        "[[expected_failures]]\n"
        'test = "test_mini::test_right[gpt2-random]"\nreason = "slow"\nlink = "x"\n'
    )
    session = run_suite("--dtype=float32", "--junitxml=j.xml", defaults=(), test_mini=HEAD + RIGHT)
    assert session.exit_status == pytest.ExitCode.TESTS_FAILED, session.output
    assert "batchproof: configured in batchproof.toml: engine, model, " in session.output
    assert "batchproof.toml:5: this known failure passes now, so take the entry out" in session.output
    assert sorted(path.name for path in tmp_path.glob("*.[jx]*")) == ["j.xml", "t.json"]


def test_a_flag_wins_over_its_key_alone(run_suite: RunSuite, tmp_path: Path) -> None:
    (tmp_path / "batchproof.toml").write_text(CHOSEN + 'dtype = "float9"\nlaps = 3\n')
    session = run_suite("--engine=ragged", "--dtype=float64", defaults=(), test_mini=HEAD + RIGHT)
    assert session.exit_status == pytest.ExitCode.OK, session.output
    assert "ragged: 1 workload, 1 answer" in session.output
    assert "static" not in session.output
    assert run_suite("--no-config", "-k", "static", defaults=("--model=gpt2-random",)).exit_status == 0


@pytest.mark.parametrize(("typed", "file"), [((), "batchproof.toml"), (("--config=a.toml",), "a.toml")])
def test_a_conftest_that_registers_the_plugin_has_the_file_read(
    run_suite: RunSuite, tmp_path: Path, typed: Sequence[str], file: str
) -> None:
    """As that of a checkout does: no option awakens the plugin."""
    (tmp_path / "batchproof.toml").write_text('engine = "ragged"\nmodel = "gpt2-random"')
    (tmp_path / "a.toml").write_text('engine = "static"\nmodel = "gpt2-random"\n')
    conftest = 'pytest_plugins = ["batchproof.plugin.active"]'
    session = run_suite(*typed, defaults=(), conftest=conftest, test_mini=HEAD + RIGHT)
    assert session.exit_status == pytest.ExitCode.OK, session.output
    assert f"batchproof: configured in {file}: engine, model" in session.output
    assert f"{'static' if typed else 'ragged'}: 1 workload, 1 answer" in session.output


def test_the_nearest_file_of_the_repository_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "repo" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    (tmp_path / "batchproof.toml").write_text("engine = 3")  # above the repository
    (inner.parent / "batchproof.toml").write_text('engine = ["a.py:E?x=1", "paged"]')
    assert config_file.find() is None, "outside a repository, the current folder counts alone"
    (inner.parent / ".git").mkdir()
    found = config_file.find()
    assert found is not None
    assert found.engines == ["../a.py:E?x=1", "paged"]
    assert (found.from_here("t.json"), found.from_here("/t.json")) == ("../t.json", "/t.json")
    assert found.named_from_here(["cmd:./x.py:y", "a/b"]) == ["cmd:./x.py:y", "a/b"]
