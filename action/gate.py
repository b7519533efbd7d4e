"""What the GitHub Action does: install lowchurn, run it, write the job summary, and keep one comment up to date.

Only the standard library is used, since nothing is installed when it starts. A comment that cannot be written is a
warning, never a failure: the exit code is that of the command.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import venv
from pathlib import Path

COMMANDS = ("audit", "compare", "history")
MOST_CHARACTERS = 65_000  # of a comment; GitHub takes 65,536
MOST_BYTES = 1_000_000  # of a job summary; GitHub takes 1 MiB
PAGE = 100
MOST_PAGES = 100
TRIES = 3
BAD_INPUT = 2


class Refused(Exception):
    """What was asked for cannot be done; the message is for the log."""


def main(env: dict[str, str]) -> int:
    """Run the action with these values of the environment and return the exit code."""
    try:
        command, arguments, markdown = read_inputs(env)
        python = install(env.get("LOWCHURN_VERSION", "").strip(), env)
    except Refused as error:
        say("error", str(error))
        return BAD_INPUT
    before = state_of(markdown)
    code, error = run([python, "-m", "lowchurn", command, *arguments])
    fresh = state_of(markdown) != before  # an older summary is no result of this run
    body = read_text(markdown) if fresh else explain(command, code, error)
    append(env.get("GITHUB_STEP_SUMMARY"), cut(body, MOST_BYTES // 4))
    append(env.get("GITHUB_OUTPUT"), f"exit-code={code}\nmarkdown={markdown if fresh else ''}\n")
    if env.get("LOWCHURN_COMMENT", "true").strip().lower() not in ("false", "no", "0", ""):
        try:
            comment(env, body)
        except Refused as refused:
            say("warning", f"{refused} The job summary has the same text.")
    return code


def read_inputs(env: dict[str, str]) -> tuple[str, list[str], Path]:
    """The command, its arguments with a file for the summary, and that file."""
    command = env.get("LOWCHURN_COMMAND", "audit").strip()
    if command not in COMMANDS:
        raise Refused(f"command must be one of {', '.join(COMMANDS)}, got {command!r}.")
    try:
        arguments = shlex.split(env.get("LOWCHURN_ARGUMENTS", ""))
    except ValueError as error:
        raise Refused(f"arguments must be words as in a shell: {error}.") from None
    for i, word in enumerate(arguments[:-1]):
        if word == "--markdown":
            return command, arguments, Path(arguments[i + 1]).absolute()
    for word in arguments:
        if word.startswith("--markdown="):
            return command, arguments, Path(word.partition("=")[2]).absolute()
    markdown = Path(tempfile.mkdtemp(prefix="lowchurn", dir=env.get("RUNNER_TEMP") or None)) / "summary.md"
    return command, [*arguments, "--markdown", str(markdown)], markdown


def install(version: str, env: dict[str, str]) -> str:
    """The Python that has lowchurn: this one, or one in a new environment that disturbs nothing."""
    if version == "installed":
        return sys.executable
    if sys.version_info < (3, 11):  # noqa: UP036 - a runner may have any
        raise Refused("lowchurn needs Python 3.11 or later. Use actions/setup-python before this action.")
    place = Path(tempfile.mkdtemp(prefix="lowchurn", dir=env.get("RUNNER_TEMP") or None))
    venv.create(place, with_pip=True)
    python = str(place / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    wanted = requirement(version, env.get("GITHUB_ACTION_PATH", "."))
    options = ("--quiet", "--disable-pip-version-check")
    if subprocess.run([python, "-m", "pip", "install", *options, wanted], check=False).returncode:
        raise Refused(f"pip could not install {wanted}.")
    return python


def requirement(version: str, here: str) -> str:
    """What pip is asked for: this checkout, one version, or a range of them."""
    if not version:
        return f"{here}[audit]"
    if not re.fullmatch(r"[\w.*+!<>=~, -]+", version):
        raise Refused(f"version must be one such as 0.2.0 or >=0.2, got {version!r}.")
    return f"lowchurn[audit]{version if version[0] in '<>=~!' else f'=={version}'}"


def run(command: list[str]) -> tuple[int, str]:
    """Run a command whose output is the log's; its exit code and the last line of its standard error."""
    last = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            last = line.strip() or last
    return process.returncode, last


def state_of(path: Path) -> tuple[int, ...] | None:
    """What is another where a file was written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def explain(command: str, code: int, error: str) -> str:
    """What to show where the command wrote no summary: an older one must not stay in the comment."""
    shown = error.replace("`", "'")[:500] or "see the log"
    return f"## lowchurn {command}: no result\n\nIt ended with exit code {code}:\n\n```text\n{shown}\n```\n"


def cut(text: str, most: int) -> str:
    """Text of at most this many characters, cut at the end of a line."""
    if len(text) <= most:
        return text
    note = "\n\nThe rest is left out here; the files of the job have all of it.\n"
    return text[: most - len(note)].rpartition("\n")[0] + note


def append(path: str | None, text: str) -> None:
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")


def say(kind: str, text: str) -> None:
    """A line that the job shows as a warning or an error."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::{kind} title=lowchurn::{escaped}", flush=True)


def comment(env: dict[str, str], body: str) -> None:
    """Create the comment of this gate on the pull request, or replace its text."""
    number = pull_request(env)
    if number is None:
        print("lowchurn: this event has no pull request to comment on.", flush=True)
        return
    if not env.get("LOWCHURN_TOKEN"):
        raise Refused("There is no token to comment with.")
    marker = marker_of(env.get("LOWCHURN_NAME") or f"{env.get('GITHUB_WORKFLOW', '')}/{env.get('GITHUB_JOB', '')}")
    repository = f"/repos/{env.get('GITHUB_REPOSITORY', '')}/issues"
    content = {"body": f"{marker}\n{cut(body, MOST_CHARACTERS - len(marker) - 1)}"}
    found = find_comment(env, f"{repository}/{number}/comments", marker)
    if found is not None:
        status, _ = ask(env, "PATCH", f"{repository}/comments/{found}", content, fine=(404,))
        if status != 404:  # it may have been deleted just now
            return
    ask(env, "POST", f"{repository}/{number}/comments", content)


def marker_of(name: str) -> str:
    """A line that is not shown and by which the comment is found again."""
    return f"<!-- lowchurn {urllib.parse.quote(name, safe=' /').replace('--', '-%2D')} -->"


def pull_request(env: dict[str, str]) -> int | None:
    """The number that was given, or that of the event; None where it is about no pull request."""
    given = env.get("LOWCHURN_PULL_REQUEST", "").strip()
    if given:
        if not given.isdigit():
            raise Refused(f"pull-request must be a number, got {given!r}.")
        return int(given)
    try:
        event = json.loads(Path(env.get("GITHUB_EVENT_PATH", "")).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    issue = event.get("issue") or {}
    started = (event.get("workflow_run") or {}).get("pull_requests") or [{}]
    found = (event.get("pull_request") or {}).get("number") or started[0].get("number")
    return found or (issue.get("number") if issue.get("pull_request") else None)


def find_comment(env: dict[str, str], path: str, marker: str) -> int | None:
    """The comment that begins with the marker and was written with a token like ours, on whatever page it is."""
    for page in range(1, MOST_PAGES + 1):
        _, comments = ask(env, "GET", f"{path}?per_page={PAGE}&page={page}")
        for each in comments:
            if (each.get("body") or "").startswith(marker) and is_ours(env, each.get("user") or {}):
                return int(each["id"])
        if len(comments) < PAGE:
            return None
    return None


def is_ours(env: dict[str, str], author: dict[str, str]) -> bool:
    """Whether a bot wrote it, or the person whose token this is: others may copy the marker, and edit their text."""
    if author.get("type") == "Bot":
        return True
    _, user = ask(env, "GET", "/user", fine=(401, 403, 404))
    return isinstance(user, dict) and bool(user.get("login")) and user["login"] == author.get("login")


def ask(
    env: dict[str, str], method: str, path: str, content: object = None, fine: tuple[int, ...] = ()
) -> tuple[int, object]:
    """One request to the API of GitHub; the status and what it answered. Errors of the server are tried again."""
    address = env.get("GITHUB_API_URL", "https://api.github.com").rstrip("/") + path
    headers = {
        "Authorization": f"Bearer {env['LOWCHURN_TOKEN']}",
        "Accept": "application/vnd.github+json",
        "Content-Type": "application/json",
        "User-Agent": "lowchurn",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    data = None if content is None else json.dumps(content).encode()
    for attempt in range(1, TRIES + 1):
        request = urllib.request.Request(address, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in fine:
                return error.code, None
            if error.code < 500 or attempt == TRIES:
                raise Refused(refusal(error.code)) from None
        except (OSError, ValueError) as error:
            if attempt == TRIES:
                raise Refused(f"The comment could not be written: {error}.") from None
        time.sleep(float(env.get("LOWCHURN_PAUSE", "1")) * attempt)
    raise AssertionError


def refusal(code: int) -> str:
    if code in (401, 403, 404):
        return (
            f"The token cannot comment on the pull request (HTTP {code}). The job needs the permission "
            "`pull-requests: write`; pull requests from forks get a token that can only read."
        )
    return f"The comment could not be written (HTTP {code})."


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
