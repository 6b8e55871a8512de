// The console: signs in, runs what is in the editor, shows what comes back, and remembers what was run.

import { claims, forgetToken, keepToken, post, rows, token } from "./api.js";
import { byId, el } from "./dom.js";
import { markError, onNamesKey, selected, setText, statementAtCursor } from "./editor.js";
import { resultView } from "./grid.js";
import { follow } from "./live.js";
import { loadTree } from "./tree.js";

const HISTORY = "lakefork.history", MOST_TEXTS = 100;
const text = byId("text"), problem = byId("problem"), status = byId("status");
let running = null, place = -1, unsent = "", stopFollowing = null;

async function run(sql, start = 0) {
  if (!sql.trim() || running) return;
  running = new AbortController();
  stopFollowing?.();
  setBusy(true);
  problem.textContent = "";
  const started = performance.now();
  try {
    const found = await post(sql, { namespace: byId("namespace").value.trim(), signal: running.signal });
    const seconds = (performance.now() - started) / 1000;
    status.textContent = `${seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`}`;
    remember(sql, found.status);
    byId("results").replaceChildren(...found.results.map(resultView));
    if (found.status !== "success") showError(found, start);
    if (/^\s*(CREATE|ALTER|DROP)\b/im.test(sql)) loadTree(claims().catalog ?? "");
  } catch (failure) {
    status.textContent = failure.name === "AbortError" ? "cancelled" : failure.message;
  } finally {
    running = null;
    setBusy(false);
  }
}

function showError({ http, error }, start) {
  problem.textContent = error.message;
  if (http === 401) signIn(error.message);
  else if (error.line) markError(error.line, error.column, start);
}

function followQuery() {
  const sql = (selected().trim() || statementAtCursor() || text.value.trim()).replace(/;\s*$/, "");
  if (!sql || running) return;
  stopFollowing?.();
  problem.textContent = "";
  stopFollowing = follow(sql, byId("results"));
  remember(sql, "success");
}

function setBusy(busy) {
  byId("run").disabled = byId("explain").disabled = busy;
  byId("cancel").disabled = !busy;
  if (busy) status.textContent = "running …";
}

const runText = () => (selected().trim() ? run(selected(), text.selectionStart) : run(text.value));

function explain() {
  const sql = selected().trim() || statementAtCursor();
  if (sql) run(/^EXPLAIN\b/i.test(sql) ? sql : `EXPLAIN ${sql}`);
}

// History stays in this browser.
const history = () => JSON.parse(localStorage.getItem(HISTORY) ?? "[]");

function remember(sql, ended) {
  const others = history().filter((one) => one.sql !== sql);
  localStorage.setItem(HISTORY, JSON.stringify([{ sql, ended, at: new Date().toISOString() }, ...others].slice(0, MOST_TEXTS)));
  place = -1;
}

function recall(step) {
  const texts = history();
  if (place === -1) unsent = text.value;
  place = Math.max(-1, Math.min(texts.length - 1, place + step));
  setText(place === -1 ? unsent : texts[place].sql);
}

function showHistory() {
  const dialog = byId("history");
  const items = history().map(({ sql, ended, at }) =>
    el("li", {}, el("button", { type: "button", class: "link", onclick: () => { setText(sql); dialog.close(); text.focus(); } }, el("pre", {}, sql)),
      el("div", { class: ended === "success" ? "faint" : "problem" }, `${new Date(at).toLocaleString()}${ended === "success" ? "" : ", failed"}`)));
  const clear = el("button", { type: "button", onclick: () => { localStorage.removeItem(HISTORY); dialog.close(); } }, "Clear");
  dialog.replaceChildren(el("h2", { id: "history-title" }, "History"), items.length ? el("ol", {}, items) : el("p", { class: "faint" }, "Nothing was run yet."),
    el("form", { method: "dialog", class: "bar" }, el("button", { class: "main" }, "Close"), clear));
  dialog.showModal();
}

function signIn(said = "") {
  const dialog = byId("sign-in");
  byId("sign-in-problem").textContent = said;
  byId("token").value = "";
  if (!dialog.open) dialog.showModal();
}

async function enter() {
  try {
    await rows("SHOW NAMESPACES");
  } catch (refused) {
    return signIn(refused.message);
  }
  byId("sign-in").close();
  const { sub, catalog, role } = claims();
  byId("who").textContent = [sub, catalog && `in ${catalog}`, role && `(at most ${role})`].filter(Boolean).join(" ");
  loadTree(catalog ?? "");
  text.focus();
}

function onKey(event) {
  if (onNamesKey(event)) return;
  const mod = event.ctrlKey || event.metaKey;
  if (mod && event.key === "Enter") (event.shiftKey ? explain : runText)();
  else if (event.altKey && event.key === "ArrowUp") recall(1);
  else if (event.altKey && event.key === "ArrowDown") recall(-1);
  else if (event.key === "Escape" && running) running.abort();
  else return;
  event.preventDefault();
}

text.addEventListener("keydown", onKey);
byId("run").addEventListener("click", runText);
byId("explain").addEventListener("click", explain);
byId("follow").addEventListener("click", followQuery);
byId("cancel").addEventListener("click", () => running?.abort());
byId("show-history").addEventListener("click", showHistory);
byId("show-keys").addEventListener("click", () => byId("keys").showModal());
byId("sign-out").addEventListener("click", () => { forgetToken(); location.reload(); });
byId("sign-in").addEventListener("cancel", (event) => event.preventDefault());
byId("sign-in").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  enter();
});
if (matchMedia("(max-width: 48rem)").matches) byId("tree-panel").open = false;
if (token()) enter();
else signIn();
