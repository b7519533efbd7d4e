// What a release costs and gains, for a plain retrain and four budgets; the text beside the form has the rule.
(function () {
  const form = document.getElementById("release-cost");
  if (!form) return;
  const KEPT = [[0, 0], [0.057, 0.19], [0.114, 0.34], [0.227, 0.56], [0.568, 0.92], [1, 1]];
  const BUDGETS = [0.5, 1, 2, 5];
  const CERTIFY = { 0.5: 2884, 1: 1441, 2: 719, 5: 260 }; // rows_to_certify(budget, 0.95, churn=budget / 2)

  function kept(share) {
    if (share >= 1) return 1;
    const above = KEPT.findIndex((pair) => pair[0] > share);
    const [x0, y0] = KEPT[above - 1], [x1, y1] = KEPT[above];
    return y0 + (y1 - y0) * (share - x0) / (x1 - x0);
  }

  const whole = (value) => Math.round(value).toLocaleString("en");
  const number = (name) => Number(form.elements[name].value);

  function show() {
    const body = document.querySelector("#calculated tbody");
    const [rows, change, wrong] = [number("rows"), number("change"), number("wrong")];
    const [churn, gain] = [number("churn"), number("gain")];
    const releases = BUDGETS.map((budget) => [`budget ${budget} %`, Math.min(budget, churn), kept(budget / churn), CERTIFY[budget]]);
    releases.push(["plain retrain", churn, 1, null]);
    body.replaceChildren(...releases.map(([name, used, share, certify]) => {
      const changed = rows * used / 100, cost = changed * change, saved = rows * gain * share / 100 * wrong;
      const line = document.createElement("tr");
      for (const text of [name, whole(changed), whole(cost), whole(saved), whole(saved - cost), certify === null ? "-" : whole(certify)]) {
        line.appendChild(document.createElement("td")).textContent = text;
      }
      return line;
    }));
  }

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
