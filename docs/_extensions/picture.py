"""Draw the picture of the README from the table of docs/results/sticky.md: python docs/_extensions/picture.py"""

import re
from pathlib import Path

import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[1]
SHOWN = {
    "sticky soup": "sticky decisions (2 models served)",
    "soup": "the dial (1 model)",
    "distill": "distillation (1 model)",
}
LOOKS = {
    "light": {"text": "#24292f", "grid": "#d0d7de", "colors": ["#0b5f8a", "#5aa9d6", "#c8a060"]},
    "dark": {"text": "#e6edf3", "grid": "#3d444d", "colors": ["#6cb8e6", "#3d7ea6", "#c8a060"]},
}


def kept():
    """Share of the gain of a plain retrain, by method and budget, as the page prints it."""
    text = (DOCS / "results" / "sticky.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+ %) \| ([\w ]+) \| \w+ \| [\d.]+ \| ([\d.]+) \|", text, flags=re.MULTILINE)
    return {(method, budget): float(share) for budget, method, share in rows}


def draw(look, shares, path):
    budgets = list(dict.fromkeys(budget for _, budget in shares))
    plt.rcParams.update(
        {"svg.hashsalt": "lowchurn", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11}
    )
    figure, axes = plt.subplots(figsize=(7.2, 3.1), layout="constrained")
    for place, (method, name) in enumerate(SHOWN.items()):
        values = [shares[method, budget] for budget in budgets]
        left = [i + 0.27 * (place - 1) for i in range(len(budgets))]
        bars = axes.bar(left, values, 0.25, label=name, color=look["colors"][place])
        axes.bar_label(bars, [f"{value:.0f}" for value in values], color=look["text"], fontsize=9, padding=1)
    axes.set_xticks(range(len(budgets)), budgets)
    axes.set_xlabel("budget: decisions that may change (a plain retrain changes 8.8 %)", color=look["text"])
    axes.set_title("Accuracy gained by retraining that is kept, %", loc="left", color=look["text"], fontsize=11)
    axes.set_ylim(0, 105)
    axes.tick_params(colors=look["text"], length=0)
    axes.grid(axis="y", color=look["grid"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, labelcolor=look["text"], loc="upper left")
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    for name, look in LOOKS.items():
        draw(look, kept(), DOCS / "_static" / f"budget-{name}.svg")
