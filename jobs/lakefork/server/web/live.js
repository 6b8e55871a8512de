// A live query: a table whose rows flash when they change. Messages: docs/live.md.

import { token } from "./api.js";
import { el } from "./dom.js";

const MOST_ROWS = 1_000; // that are shown; the query may have more
const RETRY_MS = 1_000;

export function follow(sql, shown) {
  const body = el("tbody"), head = el("tr"), said = el("span", { class: "faint", role: "status" }, "connecting …");
  const stop = el("button", { type: "button", onclick: () => end("stopped") }, "Stop");
  const rows = new Map(); // by their values, as they are shown: the lines that show them
  let columns = [], socket = null, resume = null, isOver = false, changes = 0;

  function open() {
    const url = new URL("ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    socket = new WebSocket(url);
    socket.onopen = () => {
      if (!resume) clear();
      send({ type: "authenticate", token: token() });
      send({ type: "subscribe", subscriptions: [{ id: "1", sql, options: resume ? { resume } : {} }] });
    };
    socket.onmessage = ({ data }) => take(JSON.parse(data));
    socket.onclose = () => {
      if (isOver) return;
      said.textContent = "the connection was lost; trying again …";
      setTimeout(() => isOver || open(), RETRY_MS);
    };
  }

  const send = (message) => socket.send(JSON.stringify(message));

  function take(message) {
    resume = message.resume ?? resume;
    if (message.type === "initial_data") begin(message);
    else if (message.type === "change") change(message);
    else if (message.type === "resync") clear();
    else if (message.type === "ended") end(message.reason);
    else if (message.type === "error") end(message.message);
  }

  function begin(page) {
    if (!columns.length) {
      columns = page.columns;
      head.replaceChildren(...columns.map((column) => el("th", { scope: "col" }, column)));
    }
    page.rows.forEach((row) => add(row));
    count();
  }

  function change({ old_values: before, new_values: now }) {
    changes += 1;
    const line = before && forget(before);
    if (now && line) {
      line.replaceWith(add(now, "flash"));
    } else if (now) {
      add(now, "flash");
    } else if (line) {
      line.className = "gone";
      setTimeout(() => line.remove(), RETRY_MS);
    }
    count();
  }

  function add(row, mark = null) {
    const line = el("tr", { class: mark }, columns.map((column) => el("td", {}, text(row[column]))));
    const key = keyOf(row);
    rows.set(key, [...(rows.get(key) ?? []), line]);
    if (body.childElementCount < MOST_ROWS) body.prepend(line);
    return line;
  }

  function forget(row) {
    const [line, ...others] = rows.get(keyOf(row)) ?? [];
    if (others.length) rows.set(keyOf(row), others);
    else rows.delete(keyOf(row));
    return line;
  }

  // A row that was deleted says so in _deleted, which it did not when it came.
  const keyOf = (row) => JSON.stringify(columns.filter((column) => column !== "_deleted").map((column) => row[column]));
  const text = (value) => (value === null || value === undefined ? "NULL" : typeof value === "string" ? value : JSON.stringify(value));

  function clear() {
    resume = null;
    rows.clear();
    body.replaceChildren();
  }

  function count() {
    said.textContent = `${rows.size.toLocaleString("en-US")} ${rows.size === 1 ? "row" : "rows"}, ${changes.toLocaleString("en-US")} ${changes === 1 ? "change" : "changes"}`;
  }

  function end(reason) {
    isOver = true;
    stop.disabled = true;
    said.textContent = reason;
    socket?.close();
  }

  shown.replaceChildren(el("section", { class: "result live" }, el("p", { class: "statement" }, el("code", {}, sql)),
    el("div", { class: "grid-scroll", tabindex: "0", role: "region", "aria-label": "Live rows" }, el("table", { class: "grid" }, el("thead", {}, head), body)),
    el("div", { class: "bar" }, said, el("span", { class: "grow" }), stop)));
  open();
  return () => end("stopped");
}
