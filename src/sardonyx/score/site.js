// Filters of the scoreboard's pages. They read what the page already holds; nothing is fetched.
"use strict";
(() => {
  const find = (selector, root = document) => [...root.querySelectorAll(selector)];
  const controls = Object.fromEntries(find("[data-control]").map((c) => [c.dataset.control, c]));
  const value = (name) => (controls[name] ? controls[name].value : "");
  const rows = find("[data-row]");
  const count = document.querySelector(".count");

  function kindsOf(row, engine) {
    return find("[data-engine]", row)
      .filter((cell) => !engine || cell.dataset.engine === engine)
      .flatMap((cell) => cell.dataset.kinds.split(","))
      .filter(Boolean);
  }

  function fits(row) {
    const wanted = value("search").trim().toLowerCase();
    if (wanted && !row.dataset.row.toLowerCase().includes(wanted)) return false;
    if (value("family") && row.dataset.family !== value("family")) return false;
    const kinds = kindsOf(row, value("engine"));
    if (value("kind") === "any") return kinds.some((kind) => kind !== "pass");
    return !value("kind") || kinds.includes(value("kind"));
  }

  function apply() {
    let shown = 0;
    const axis = value("axis");
    for (const table of find("[data-axis]")) table.hidden = Boolean(axis) && table.dataset.axis !== axis;
    for (const row of rows) {
      row.hidden = !fits(row);
      const table = row.closest("[data-axis]");
      const counts = row.dataset.family !== "networks";  // rows of whole models are no operators
      shown += counts && !row.hidden && !(table && table.hidden);
    }
    if (count) count.textContent = `${shown} ${count.dataset.unit}`;
    remember();
  }

  function remember() {
    const kept = new URLSearchParams();
    for (const [name, control] of Object.entries(controls)) {
      if (control.value && control.value !== control.dataset.default) kept.set(name, control.value);
    }
    const query = kept.toString();
    kept.delete("search");  // of operators, while the page behind a link searches cases
    for (const link of find("[data-row] th a")) link.search = kept.toString();
    const address = location.pathname + (query ? `?${query}` : "") + location.hash;
    try {
      history.replaceState(null, "", address);
    } catch {
      // a page opened from a file may not change its address in some browsers
    }
  }

  function openTarget() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      target.hidden = false;
      target.open = true;
      target.scrollIntoView();
    }
  }

  for (const [name, given] of new URLSearchParams(location.search)) {
    if (controls[name]) controls[name].value = given;
  }
  for (const control of Object.values(controls)) control.addEventListener("input", apply);
  window.addEventListener("hashchange", openTarget);
  window.addEventListener("beforeprint", () => find("details").forEach((d) => (d.open = true)));
  apply();
  openTarget();
})();
