"""The script of the GitHub Action, run as a runner runs it, against a stand-in for the API of GitHub."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "action" / "gate.py"
SUMMARY = "## Model audit: PASS\n\n| figure | value |\n| --- | --- |\n| churn | 1.00 % |\n"
# In place of lowchurn: writes a summary unless it is told not to, and ends with the exit code that it is told.
STUB = """
import sys
arguments = sys.argv[1:]
print("ran", arguments)
if "--silent" in arguments:
    print("error: audit: no file 'new`.parquet'.", file=sys.stderr)
else:
    path = arguments[arguments.index("--markdown") + 1]
    open(path, "w", encoding="utf-8").write(SUMMARY + "x" * ("--long" in arguments) * 200_000)
sys.exit(int(arguments[arguments.index("--code") + 1]) if "--code" in arguments else 0)
"""


class GitHub:
    """Comments of a pull request as GitHub's API has them; ``refuse`` maps a method to the status that it gets."""

    def __init__(self):
        self.comments = {7: []}
        self.refuse, self.asked, self.login, self.failures = {}, [], None, 0
        self.bodies = []

    def add(self, body, login="github-actions[bot]", kind="Bot", number=7):
        id = 1000 + sum(map(len, self.comments.values()))
        self.comments[number].append({"id": id, "body": body, "user": {"login": login, "type": kind}})
        return id

    def answer(self, method, path, query, content):
        if self.failures:
            self.failures -= 1
            return 502, {}
        if method in self.refuse:
            return self.refuse[method], {"message": "Resource not accessible by integration"}
        if path == "/user":
            return (200, {"login": self.login}) if self.login else (403, {})
        listed = re.fullmatch(r"/repos/o/r/issues/(\d+)/comments", path)
        if listed and method == "GET":
            size, page = (int(query[name][0]) for name in ("per_page", "page"))
            return 200, self.comments[int(listed[1])][size * (page - 1) : size * page]
        if listed and method == "POST":
            self.add(content["body"], number=int(listed[1]))
            return 201, self.comments[int(listed[1])][-1]
        one = re.fullmatch(r"/repos/o/r/issues/comments/(\d+)", path)
        for each in self.comments[7]:
            if one and method == "PATCH" and each["id"] == int(one[1]):
                each["body"] = content["body"]
                return 200, each
        return 404, {}


@pytest.fixture
def github():
    state = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def do(self):
            place = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.asked.append((self.command, place.path))
            assert self.headers["Authorization"] == "Bearer secret-token"
            assert self.headers["Accept"] == "application/vnd.github+json"
            status, found = state.answer(
                self.command, place.path, parse_qs(place.query), json.loads(raw) if raw else None
            )
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture
def action(tmp_path, github):
    """Run the script with inputs, as action.yml does; unless ``real``, with the stub in place of lowchurn."""
    stub = tmp_path / "stub" / "lowchurn"
    stub.mkdir(parents=True)
    (stub / "__init__.py").touch()
    (stub / "__main__.py").write_text(f"SUMMARY = {SUMMARY!r}\n{STUB}")
    (tmp_path / "temp").mkdir()
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": 7}}))

    def call(arguments, real=False, event="event.json", **inputs):
        (tmp_path / "output").write_text("")
        (tmp_path / "step.md").write_text("before\n")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "LOWCHURN_"))}
        env |= {
            "PYTHONPATH": str(ROOT / "src" if real else tmp_path / "stub"),
            "RUNNER_TEMP": str(tmp_path / "temp"),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_API_URL": github.url,
            "GITHUB_EVENT_PATH": str(tmp_path / event),
            "GITHUB_JOB": "gate",
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "step.md"),
            "GITHUB_WORKFLOW": "model gate",
            "LOWCHURN_ARGUMENTS": arguments,
            "LOWCHURN_COMMAND": "audit",
            "LOWCHURN_COMMENT": "true",
            "LOWCHURN_NAME": "",
            "LOWCHURN_PAUSE": "0",
            "LOWCHURN_PULL_REQUEST": "",
            "LOWCHURN_TOKEN": "secret-token",
            "LOWCHURN_VERSION": "installed",
        }
        env |= {f"LOWCHURN_{name.upper()}": value for name, value in inputs.items()}
        done = subprocess.run(
            [sys.executable, SCRIPT], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert "secret-token" not in done.stdout + done.stderr
        outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
        return SimpleNamespace(
            code=done.returncode,
            out=done.stdout,
            err=done.stderr,
            outputs=outputs,
            summary=(tmp_path / "step.md").read_text().removeprefix("before\n"),
            folder=tmp_path,
        )

    return call


MARKER = "<!-- lowchurn model gate/gate -->"


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_is_that_of_the_command(action, github, code):
    done = action(f"old.parquet new.parquet --code {code}")
    assert done.code == code
    assert done.outputs["exit-code"] == str(code)
    assert Path(done.outputs["markdown"]).read_text() == SUMMARY
    assert done.summary == SUMMARY
    assert [c["body"] for c in github.comments[7]] == [f"{MARKER}\n{SUMMARY}"]


def test_one_comment_is_updated_in_place(action, github):
    github.add("Looks good to me.", "alice", "User")
    first = github.add(f"{MARKER}\nof an earlier push")
    other = github.add("<!-- lowchurn other gate/gate -->\nof another gate")
    for _ in range(3):
        action("a b")
    found = {c["id"]: c["body"] for c in github.comments[7]}
    assert len(found) == 3
    assert found[first] == f"{MARKER}\n{SUMMARY}"
    assert found[other].endswith("of another gate")
    assert ("POST", "/repos/o/r/issues/7/comments") not in github.asked


def test_the_comment_is_found_on_a_later_page(action, github):
    for i in range(250):
        github.add(f"comment {i}", "alice", "User")
    mine = github.add(f"{MARKER}\nold")
    action("a b")
    assert len(github.comments[7]) == 251
    assert next(c for c in github.comments[7] if c["id"] == mine)["body"].endswith(SUMMARY)
    assert github.asked.count(("GET", "/repos/o/r/issues/7/comments")) == 3


def test_exactly_full_pages_end_the_search(action, github):
    for i in range(200):
        github.add(f"comment {i}", "alice", "User")
    action("a b")
    assert len(github.comments[7]) == 201


def test_the_marker_in_a_comment_of_somebody_else_is_left_alone(action, github):
    theirs = github.add(f"{MARKER}\nPASS, trust me", "mallory", "User")
    quoted = github.add(f"As the gate said:\n{MARKER}\nFAIL", "github-actions[bot]", "Bot")
    action("a b")
    found = {c["id"]: c["body"] for c in github.comments[7]}
    assert found[theirs].endswith("trust me")
    assert found[quoted].endswith("FAIL")
    assert len(found) == 3


def test_with_a_personal_token_the_own_comment_is_updated(action, github):
    github.login = "alice"
    github.add(f"{MARKER}\nnot hers", "mallory", "User")
    hers = github.add(f"{MARKER}\nold", "alice", "User")
    action("a b")
    assert len(github.comments[7]) == 2
    assert next(c for c in github.comments[7] if c["id"] == hers)["body"].endswith(SUMMARY)


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_token_that_cannot_comment_is_a_warning(action, github, method, status):
    github.refuse = {method: status}
    done = action("a b --code 1")
    assert done.code == 1
    assert f"::warning title=lowchurn::The token cannot comment on the pull request (HTTP {status})" in done.out
    assert "pull-requests: write" in done.out
    assert "Traceback" not in done.err
    assert done.summary == SUMMARY
    assert github.comments[7] == []


def test_a_token_that_cannot_update_is_a_warning_and_no_second_comment(action, github):
    github.add(f"{MARKER}\nold")
    github.refuse = {"PATCH": 403}
    assert "::warning" in action("a b").out
    assert len(github.comments[7]) == 1


def test_a_comment_that_was_deleted_meanwhile_is_written_again(action, github):
    github.add(f"{MARKER}\nold")
    github.refuse = {"PATCH": 404}
    assert "::warning" not in action("a b").out
    assert len(github.comments[7]) == 2


def test_errors_of_the_server_are_tried_again(action, github):
    github.failures = 2
    assert "::warning" not in action("a b").out
    assert len(github.comments[7]) == 1
    github.failures = 9
    done = action("a b")
    assert "::warning title=lowchurn::The comment could not be written (HTTP 502)" in done.out
    assert done.code == 0


def test_an_api_that_is_not_there_is_a_warning(action, github):
    url, github.url = github.url, "http://127.0.0.1:9"
    assert "::warning title=lowchurn::The comment could not be written" in action("a b").out
    github.url = url


def test_a_run_without_a_result_replaces_an_older_one(action, github):
    mine = github.add(f"{MARKER}\n{SUMMARY}")
    done = action("a b --silent --code 2")
    body = next(c for c in github.comments[7] if c["id"] == mine)["body"]
    assert "lowchurn audit: no result" in body
    assert "error: audit: no file 'new'.parquet'." in body
    assert "PASS" not in body
    assert done.outputs == {"exit-code": "2", "markdown": ""}
    assert done.err.strip().endswith("no file 'new`.parquet'.")


@pytest.mark.parametrize("form", ["--markdown mine.md", "--markdown=mine.md"])
def test_a_file_of_the_user_is_used_and_an_old_one_is_not(action, github, form):
    (action("a b").folder / "mine.md").write_text("old")
    if "=" not in form:  # the stub knows the other form only
        done = action(f"a b {form}")
        assert (done.folder / "mine.md").read_text() == done.summary == SUMMARY
    done = action(f"a b --silent {form}")
    assert "no result" in done.summary
    assert done.out.count("--markdown") == 1


def test_arguments_are_words_and_nothing_in_them_is_run(action):
    done = action("a 'b c' \"$(touch hacked)\"\n--name `touch hacked`; touch hacked")
    assert "['audit', 'a', 'b c', '$(touch hacked)', '--name', '`touch', 'hacked`;', 'touch', 'hacked'" in done.out
    assert not (done.folder / "hacked").exists()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"command": "retrain"}, "command must be one of audit, compare, history, got 'retrain'"),
        ({"arguments": "a 'b"}, "arguments must be words as in a shell: No closing quotation"),
        ({"version": "0.2; rm -rf /"}, "version must be one such as 0.2.0"),
    ],
)
def test_wrong_inputs_are_errors(action, github, inputs, words):
    if "version" in inputs:
        from action import gate

        with pytest.raises(gate.Refused, match=words):
            gate.requirement(inputs["version"], ".")
        return
    done = action(**{"arguments": "a b"} | inputs)
    assert done.code == 2
    assert f"::error title=lowchurn::{words}" in done.out
    assert github.asked == []


def test_what_pip_is_asked_for():
    from action import gate

    assert gate.requirement("", "/here") == "/here[audit]"
    assert gate.requirement("0.2.0", "/here") == "lowchurn[audit]==0.2.0"
    assert gate.requirement(">=0.2,<1", "/here") == "lowchurn[audit]>=0.2,<1"


@pytest.mark.parametrize(
    ("event", "number"),
    [
        ({"pull_request": {"number": 7}}, 7),
        ({"issue": {"number": 7, "pull_request": {"url": "x"}}}, 7),
        ({"workflow_run": {"pull_requests": [{"number": 7}]}}, 7),
        ({"issue": {"number": 8}}, None),
        ({"workflow_run": {"pull_requests": []}}, None),
        ({"ref": "refs/heads/main"}, None),
        (None, None),
    ],
)
def test_the_pull_request_of_the_event(tmp_path, event, number):
    from action import gate

    if event is not None:
        (tmp_path / "event.json").write_text(json.dumps(event))
    assert gate.pull_request({"GITHUB_EVENT_PATH": str(tmp_path / "event.json")}) == number


def test_without_a_pull_request_or_a_wish_nothing_is_asked_of_github(action, github):
    assert "no pull request to comment on" in action("a b", event="no.json").out
    action("a b", comment="false")
    assert github.asked == []
    github.comments[9] = []
    action("a b", pull_request="9", event="no.json")
    assert len(github.comments[9]) == 1
    assert "::warning title=lowchurn::There is no token" in action("a b", token="").out
    assert "pull-request must be a number" in action("a b", pull_request="x").out


def test_two_gates_have_two_comments(action, github):
    action("a b", name="fraud")
    action("a b", name="credit --> --")
    action("a b", name="fraud")
    bodies = [c["body"] for c in github.comments[7]]
    assert len(bodies) == 2
    assert bodies[1].splitlines()[0].count("-->") == 1


def test_a_long_summary_is_cut_at_a_line(action, github):
    done = action("a b --long")
    (body,) = (c["body"] for c in github.comments[7])
    assert len(body) < 65_536
    assert body.endswith("The rest is left out here; the files of the job have all of it.\n")
    assert len(done.summary) > 200_000


def test_the_real_command_end_to_end(action, github):
    folder = action("a b").folder
    rows = pd.DataFrame({"id": range(400), "prediction": 0, "y": 0})
    rows.to_parquet(folder / "old.parquet")
    rows.assign(prediction=[int(i < 100) for i in range(400)]).to_parquet(folder / "new.parquet")
    done = action("old.parquet new.parquet --label y --max-churn 0.03 --html report.html", real=True)
    assert done.code == 1, done.err
    (body,) = (c["body"] for c in github.comments[7])
    assert body.startswith(f"{MARKER}\n## Model audit: FAIL")
    assert (folder / "report.html").exists()
    assert "FAIL" in done.out


def test_the_action_hands_over_what_the_script_reads():
    text = (ROOT / "action.yml").read_text()
    given = set(re.findall(r"^        (LOWCHURN_\w+): \$\{\{ inputs\.", text, flags=re.MULTILINE))
    read = set(re.findall(r"LOWCHURN_[A-Z_]+", SCRIPT.read_text())) - {"LOWCHURN_PAUSE"}
    assert given == read
    inputs = set(re.findall(r"^  ([a-z-]+):$", text.split("inputs:\n")[1].split("outputs:\n")[0], flags=re.MULTILINE))
    assert {f"LOWCHURN_{name.upper().replace('-', '_')}" for name in inputs - {"working-directory"}} == given
    run = text.split("      run: ")[1]
    assert "${{" not in run  # a value of an input would be a part of the script


def workflows():
    text = (ROOT / "docs" / "audit.md").read_text()
    return re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_workflow_of_the_documents_uses_the_action():
    (workflow,) = workflows()
    inputs = (ROOT / "action.yml").read_text().split("outputs:\n")[0]
    step = workflow.split("/lowchurn@")[1]
    for name in re.findall(r"^          ([a-z-]+):", step.split("      - ")[0], flags=re.MULTILINE):
        assert f"  {name}:\n" in inputs, name


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_the_workflow_of_the_documents_passes_actionlint(tmp_path):
    place = tmp_path / ".github" / "workflows"
    place.mkdir(parents=True)
    for i, workflow in enumerate(workflows()):
        (place / f"{i}.yml").write_text(workflow)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    done = subprocess.run(["actionlint", "-no-color"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
