"""The command line, as a person would call it."""

import re
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest
import typer
from rich.console import Console

from lowchurn import __version__, cli
from lowchurn.audit import Limits
from lowchurn.audit._settings import Settings
from lowchurn.cli._demo import show_demo


def called(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "lowchurn", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def lowchurn(monkeypatch, capsys):
    """The command in this process."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lowchurn", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *capsys.readouterr()

    return call


def test_python_m_lowchurn():
    result = called("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"lowchurn {__version__}\n", "")


def test_help_lists_commands_options_and_exit_codes(lowchurn):
    code, out, _ = lowchurn("--help")
    assert code == 0
    words = " ".join(out.split())
    for wanted in ("demo", "audit", "retrain", "dial", "score", "--debug", "--version",
                   "Exit codes: 0 done or PASS; 1 FAIL", "2 bad input; 3 INCONCLUSIVE; 4 internal error"):  # fmt: skip
        assert wanted in words
    code, out, _ = lowchurn("retrain", "--help")
    assert code == 0
    assert "Exit codes:" in out


def commands(command, path=()):
    """Every command below a group, with the words that call it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command


COMMANDS = dict(commands(typer.main.get_command(cli.app)))


def assert_sentence(words, where):
    assert words[:1].isupper(), f"{where}: {words}"
    assert words.endswith("."), f"{where}: {words}"
    assert len(words.split()) > 2, f"{where}: {words}"
    assert "..." not in words, f"{where}: {words}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_sentence_of_help(name):
    for paragraph in COMMANDS[name].help.split("\n\n"):
        assert_sentence(paragraph, name)
    for option in COMMANDS[name].params:
        if option.name != "help":
            assert_sentence(option.help or "", f"{name} {option.name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_in_groups(name):
    for option in COMMANDS[name].params:
        if option.param_type_name == "option" and option.name != "help":
            assert option.rich_help_panel, f"{name}: {option.name} is in no group of cli/_help.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example_that_can_be_called(name):
    exits, example = (COMMANDS[name].epilog or "").rsplit("\n\n", 1)
    assert exits.startswith("Exit codes: 0 ")
    words = shlex.split(example.removeprefix("Example: "))
    assert words[: 1 + len(name.split())] == ["lowchurn", *name.split()]
    COMMANDS[name].make_context(name, words[1 + len(name.split()) :])  # the options exist, and none is missing


@pytest.mark.parametrize("group", ["bench", "data"])
def test_the_help_of_a_group_ends_with_an_example(lowchurn, group):
    code, out, _ = lowchurn(group, "--help")
    example = " ".join(out.split()).rsplit("Example: lowchurn ", 1)[1]
    name = " ".join(example.split()[:2])
    assert (code, name.split()[0]) == (0, group)
    COMMANDS[name].make_context(name, example.split()[2:])


@pytest.mark.parametrize(("name", "failure"), [("score", ""), ("dial", "1 a certificate"), ("bench run", "1 none of")])
def test_exit_codes_are_those_of_the_command(name, failure):
    codes = (COMMANDS[name].epilog or "").split("\n\n")[0]
    assert failure in codes
    assert ("; 1 " in codes) == bool(failure)


def test_help_as_it_is_printed(lowchurn):
    code, out, _ = lowchurn("audit", "--help")
    assert code == 0
    places = [out.index(f" {group} ") for group in ("Arguments", "What to compare", "Limits", "Output", "Settings")]
    assert places == sorted(places)
    assert " ".join(out.split()).endswith("--max-churn 0.03 --html report.html")


def test_options_of_an_audit_are_its_settings_and_limits():
    """The options, the keys of the TOML file and the fields of the dataclasses agree one to one."""
    files = {"config", "html", "json", "junit", "markdown", "disputed", "disputed_rows", "answers", "force", "frontier"}
    others = {"old", "new", "margin", "power", "inconclusive", "never_break"} | files
    limits = {field.name for field in fields(Limits)}
    settings = {field.name for field in fields(Settings)}
    options = {option.name for option in COMMANDS["audit"].params if option.name != "help"}
    assert options == settings | limits | {f"slice_{name}" for name in limits} | others


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--max-churn", "1.5"), "demo: --max-churn must be in (0, 1), got 1.5."),
        (("demo", "--max-churn", "0"), "demo: --max-churn must be in (0, 1), got 0.0."),
        (("demo", "--seed", "-1"), "'--seed'"),
        (("retrain", "--data", "a", "--target", "b", "--out", "c", "--seed", str(2**32)), "'--seed'"),
        (("dmo",), "Did you mean 'demo'?"),
        (("retrain",), "Missing option '--data'. See lowchurn retrain --help."),
        (("retrain", "--data"), "'--data' requires an argument"),
    ],
)
def test_bad_usage_is_exit_code_2_and_one_line(lowchurn, arguments, words):
    code, out, err = lowchurn(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert err.count("\n") == 1


def test_an_error_inside_a_command_is_exit_code_4(lowchurn, monkeypatch):
    def broken(*arguments):
        raise KeyError("x")

    monkeypatch.setattr("lowchurn.cli._demo.show_demo", broken)
    code, _, err = lowchurn("demo")
    assert code == 4
    assert err == (
        "internal error: KeyError: 'x'. This is a bug in lowchurn: please report it with the command; --debug shows "
        "the traceback.\n"
    )
    code, _, err = lowchurn("demo", "--debug")
    assert code == 4
    assert "| Traceback" in err


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What the demo prints, and its folder."""
    console, folder = Console(record=True, width=200), tmp_path_factory.mktemp("demo") / "made by it"
    show_demo(console, 0.03, 0, folder)
    return console.export_text(), folder


def test_the_demo_compares_four_retrains(shown):
    text, _ = shown
    rows = {words[0]: [float(n) for n in words[1:]] for words in re.findall(
        r"^(.+?)\s+([\d.]+) %\s+([\d.]+) %\s+([\d.]+) %\s+([\d.]+) %\s+(\d)$", text, flags=re.MULTILINE)}  # fmt: skip
    assert list(rows) == ["plain retrain", "distillation (the paper)", "the dial", "sticky decisions"]
    for name in list(rows)[1:]:
        accuracy, changed, broken, fixed, _ = rows[name]
        assert changed == pytest.approx(broken + fixed, abs=0.02)  # of two classes, none changes laterally
        assert changed < 1.25 * 3 < rows["plain retrain"][1]
        assert 85.06 < accuracy < rows["plain retrain"][0]


def test_the_demo_names_a_page_and_files_that_can_be_audited(shown, lowchurn):
    text, folder = shown
    assert f"Open this page: {folder / 'report.html'}\n" in text
    assert "<h1" in (folder / "report.html").read_text()
    code, out, _ = lowchurn(
        "audit", f"{folder}/production.csv", f"{folder}/retrain.csv", "--label", "y", "--max-churn", "0.05"
    )
    assert (code, "FAIL" in out) == (1, True)
    code, out, _ = lowchurn(
        "audit", f"{folder}/production.csv", f"{folder}/sticky.csv", "--label", "y", "--max-churn", "0.05"
    )
    assert (code, "PASS" in out) == (0, True)


def test_the_demo_needs_no_torch():
    loaded = "import sys, lowchurn.cli._demo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


def test_the_folder_of_the_demo_is_a_folder(lowchurn, tmp_path):
    (tmp_path / "taken").write_text("mine")
    code, _, err = lowchurn("demo", "--out", str(tmp_path / "taken"))
    assert (code, err) == (2, f"error: demo: --out must be a folder, got the file '{tmp_path / 'taken'}'.\n")
