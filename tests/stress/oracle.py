"""What an audit counts, as a plain loop over dictionaries: slow and plainly right."""

import math
from fractions import Fraction


def same(a, b):
    """Whether two decisions are one class: text is text, numbers are compared exactly."""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    try:
        return Fraction(a) == Fraction(b)
    except (TypeError, ValueError):
        return a == b


def count(old, new, labels=None):
    """Churn, and with labels broken, fixed and both accuracies; ``old`` and ``new`` map ids to decisions."""
    changed = broken = fixed = right_old = right_new = labelled = 0
    for key, was in old.items():
        now = new[key]
        changed += not same(was, now)
        truth = None if labels is None else labels.get(key)
        if truth is None:
            continue
        labelled += 1
        good, still = same(was, truth), same(now, truth)
        right_old, right_new = right_old + good, right_new + still
        broken, fixed = broken + (good and not still), fixed + (still and not good)

    def share(part, whole):
        return part / whole if whole else math.nan

    return {
        "churn": share(changed, len(old)),
        "broken": share(broken, labelled),
        "fixed": share(fixed, labelled),
        "accuracy_old": share(right_old, labelled),
        "accuracy_new": share(right_new, labelled),
    }
