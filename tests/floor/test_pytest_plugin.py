"""The fixture ``churn_gate`` in tests of its own, run by pytest as a user's are."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)
ROOT = Path(__file__).parent.parent.parent
TABLES = """
import pandas as pd

old = pd.DataFrame({"id": range(2000), "prediction": 0, "y": 0, "country": ["de", "fr"] * 1000})
new = old[["id"]].assign(prediction=[int(i < 40) for i in range(2000)])
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a file of tests with our plugin alone, as if it were installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def call(*tests, tables=TABLES):
        pytester.makepyfile(tables + "\n".join(tests))
        return pytester.runpytest_subprocess("-p", "lowchurn._pytest_plugin", "-p", "no:cacheprovider")

    return call


def test_it_passes_and_fails_as_the_gate_does(run):
    result = run(
        "def test_pass(churn_gate): churn_gate(old, new, id='id', label='y', max_churn=0.04)",
        "def test_fail(churn_gate): churn_gate(old, new, id='id', label='y', max_churn=0.01)",
        "def test_open(churn_gate): churn_gate(old, new, max_churn=0.021)",
        "def test_broken(churn_gate): churn_gate(old, new, label='y', max_broken=0.001)",
    )
    result.assert_outcomes(passed=1, failed=3)
    said = str(result.stdout)
    assert "FAIL all rows: changed decisions 2.00 % (1.43 to 2.71), above the limit 1.00 %." in said
    assert "INCONCLUSIVE all rows: changed decisions 2.00 % (1.43 to 2.71) straddles the limit 2.10 %" in said
    assert "40 of 2,000 decisions change" in said
    assert "FAIL all rows: broken decisions 2.00 %" in said
    assert "_pytest_plugin.py" not in said  # the words are enough: no traceback of ours


def test_the_policy_on_open_verdicts(run):
    result = run(
        "def test_warn(churn_gate): churn_gate(old, new, max_churn=0.021, inconclusive='warn')",
        "def test_quiet(churn_gate): churn_gate(old, new, max_churn=0.021, inconclusive='pass')",
    )
    assert result.parseoutcomes()["passed"] == 2
    assert str(result.stdout).count("UserWarning: churn_gate: INCONCLUSIVE") == 1


def test_slices_tables_of_other_kinds_and_the_audit_itself(run):
    result = run(
        "def test_slices(churn_gate):",
        "    found = churn_gate(old, new, label='y', by='country', slices={'country': {'max_churn': 0.05}})",
        "    assert [s.name for s in found.slices] == ['country=de', 'country=fr']",
        "    assert found.churn.value == 0.02",
        "def test_files(churn_gate, tmp_path):",
        "    for name, table in (('old', old), ('new', new)): table.to_parquet(tmp_path / f'{name}.parquet')",
        "    churn_gate(tmp_path / 'old.parquet', tmp_path / 'new.parquet', max_churn=0.05)",
    )
    result.assert_outcomes(passed=2)


def test_the_page_is_written_when_the_test_fails_too(run, pytester):
    run("def test_fail(churn_gate): churn_gate(old, new, max_churn=0.01, html='report.html')").assert_outcomes(failed=1)
    assert "It should not ship" in (pytester.path / "report.html").read_text(encoding="utf-8")


def test_wrong_arguments_are_errors_of_the_test(run):
    result = run(
        "def test_name(churn_gate): churn_gate(old, new, max_chrun=0.01)",
        "def test_none(churn_gate): churn_gate(old, new)",
    )
    result.assert_outcomes(failed=2)
    said = str(result.stdout)
    assert "churn_gate: unknown argument 'max_chrun'. Did you mean 'max_churn'" in said
    assert "gate: set at least one limit" in said


def test_the_example_of_the_documents(run):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "audit.md").read_text(), flags=re.M | re.S)
    (example,) = (block for block in blocks if "churn_gate" in block)
    run(example, tables=blocks[0]).assert_outcomes(passed=1)


def test_pytest_is_told_of_it_and_starts_without_anything_heavy():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"lowchurn": "lowchurn._pytest_plugin"}
    heavy = ("numpy", "scipy", "sklearn", "pandas", "pyarrow", "ibis", "duckdb", "jinja2", "torch", "rich", "typer")
    code = f"import sys, lowchurn._pytest_plugin; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
