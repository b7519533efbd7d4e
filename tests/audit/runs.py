"""Logs of evaluation runs, in the form in which their tools write them."""

import hashlib
import json

import numpy as np
import pandas as pd

DATE = "2025-03-01T12-00-00.123456"
TESTS = [({"a": i, "b": i + 1}, i % 3 != 0) for i in range(12)]  # the variables of an item, and whether it is right


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def lm_eval_sample(i, answer, right, filter="none", metrics=("exact_match",), shots="", **more):
    """What lm-evaluation-harness 0.4.13 logs for an item of a task that generates text."""
    doc = {"question": f"What is {i} times 3?", "answer": str(3 * i), "topic": "even" if i % 2 == 0 else "odd"}
    prompt = f"{shots}Question: {doc['question']}\nAnswer:"
    sample = {
        "doc_id": i,
        "doc": doc,
        "target": doc["answer"],
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["\n"]}}},
        "resps": [[answer]],
        "filtered_resps": [answer],
        "filter": filter,
        "metrics": list(metrics),
        "doc_hash": sha(json.dumps(doc, indent=2)),
        "prompt_hash": sha(prompt),
        "target_hash": sha(doc["answer"]),
    }
    return sample | {metric: float(right) for metric in metrics} | more


def lm_eval_choice(i, likelihoods, right):
    """The same for an item of a task with several choices."""
    doc = {"question": f"What is {i}+{i}?", "choices": [str(2 * i), str(2 * i + 1), f"{2 * i + 2} or so"], "answer": 0}
    prompt = f"Question: {doc['question']}\nAnswer:"
    answers = [[str(value), "False"] for value in likelihoods]
    return {
        "doc_id": i,
        "doc": doc,
        "target": "0",
        "arguments": {f"gen_args_{k}": {"arg_0": prompt, "arg_1": f" {c}"} for k, c in enumerate(doc["choices"])},
        "resps": [[answer] for answer in answers],
        "filtered_resps": answers,
        "filter": "none",
        "metrics": ["acc", "acc_norm"],
        "doc_hash": sha(json.dumps(doc, indent=2)),
        "prompt_hash": sha(prompt),
        "target_hash": sha("0"),
        "acc": float(right[0]),
        "acc_norm": float(right[1]),
    }


def write_lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_samples(folder, task, samples, date=DATE):
    return write_lines(folder / f"samples_{task}_{date}.jsonl", samples)


def promptfoo_result(index, variables, right, prompt="What is {{a}}+{{b}}?", provider="fake-1", error=False, **more):
    """What promptfoo 0.121 writes for a result, as a line of JSONL or an entry of ``results.results`` in JSON."""
    rendered = prompt
    for name, value in variables.items():
        rendered = rendered.replace(f"{{{{{name}}}}}", str(value))
    checks = [{"type": "equals", "value": str(sum(v for v in variables.values() if isinstance(v, int)))}]
    test = {"vars": variables, "assert": checks, "options": {}, "metadata": {"topic": "sums"}}
    result = {
        "cost": 0,
        "gradingResult": None if error else {"pass": right, "score": float(right)},
        "id": f"result-{index}",
        "namedScores": {},
        "prompt": {"raw": rendered, "label": prompt, "config": {}},
        "promptIdx": 0,
        "provider": {"id": "file://provider.js", "label": provider},
        "score": float(right and not error),
        "success": right and not error,
        "testCase": test,
        "testIdx": index,
        "vars": variables,
        "failureReason": 2 if error else int(not right),
    }
    if not error:
        result["response"] = {"output": "yes" if right else "no idea"}
    return result | more


def promptfoo_results(**more):
    return [promptfoo_result(i, variables, right, **more) for i, (variables, right) in enumerate(TESTS)]


def random_runs(seed=0, tasks=3, items=80, gaps=0.1, repeats=1):
    """Two runs of the same items as tables, from which a tenth of the items is missing on either side."""
    rng = np.random.default_rng(seed)
    keys = [(f"task {t}", f"item {i}", e) for t in range(tasks) for i in range(items) for e in range(1, repeats + 1)]
    rows = pd.DataFrame(keys, columns=["task", "id", "epoch"])
    hard = {key: rng.random() for key in dict.fromkeys(zip(rows.task, rows.id, strict=True))}
    hardness = np.array([hard[key] for key in zip(rows.task, rows.id, strict=True)])
    sides = []
    for drop in (0.0, 0.1):
        right = rng.random(len(rows)) < np.clip(hardness + 0.3 - drop, 0, 1)
        side = rows.assign(outcome=right, answer=[f"answer {n}" for n in rng.integers(0, 5, len(rows))])
        sides.append(side[rng.random(len(rows)) >= gaps].sample(frac=1, random_state=seed))
    return sides
