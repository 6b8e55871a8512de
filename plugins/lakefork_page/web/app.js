// Shows the view that the address names after #. Keys: 1 to 6 for the views, / for the search.

import { get } from "./api.js";
import { airflowLink, el, problemLine } from "./dom.js";
import { allow } from "./start.js";
import * as views from "./views.js";

const VIEWS = { "": views.overview, catalogs: views.catalogs, catalog: views.catalog, table: views.oneTable, forks: views.forks, runs: views.runs, audits: views.audits, gc: views.gc };
const main = document.getElementById("view");
let shown = 0;

async function show() {
  const turn = ++shown;
  const [address, query] = location.hash.replace(/^#\/?/, "").split("?");
  main.setAttribute("aria-busy", "true");
  let title = [], content;
  try {
    title = address.split("/").map(decodeURIComponent);
    markCurrent(title[0]);
    const view = Object.hasOwn(VIEWS, title[0]) ? VIEWS[title[0]] : () => [el("p", {}, "This view does not exist.")];
    content = await view(title.slice(1), new URLSearchParams(query));
  } catch (problem) {
    content = [problemLine(problem)];
  }
  if (turn !== shown) return;
  main.replaceChildren(...content.filter(Boolean));
  main.setAttribute("aria-busy", "false");
  document.title = title[0] ? `${title.join(" ")} – Lakefork` : "Lakefork";
}

function markCurrent(name) {
  const own = { catalog: "catalogs", table: "catalogs" }[name] ?? name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#/${own}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  } else {
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
  }
}

// Airflow stores the user's choice; without one the system's preference applies.
function followTheme() {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
}

followTheme();
window.addEventListener("storage", followTheme);
window.addEventListener("hashchange", show);
document.addEventListener("keydown", onKey);
try {
  const me = await get("me");
  allow(me);
  if (me.console) document.querySelector("nav").append(airflowLink(me.console, "SQL console"));
  document.getElementById("user").textContent = me.may_trigger.length ? me.user : `${me.user} (read only)`;
} finally {
  show();
}
