// Results: a grid that can be sorted and copied, the plan of an EXPLAIN, or one line.

import { el } from "./dom.js";

const STEP = 500;

export function resultView(result) {
  const title = el("p", { class: "statement" }, el("code", {}, result.statement));
  if (!result.columns) {
    const said = result.affected_rows === undefined ? "done" : `${result.affected_rows.toLocaleString("en-US")} ${result.affected_rows === 1 ? "row" : "rows"} affected`;
    return el("section", { class: "result" }, title, said);
  }
  const isPlan = /^\s*EXPLAIN\b/i.test(result.statement);
  return el("section", { class: "result" }, title, ...(isPlan ? planView(result) : gridView(result)));
}

// One list for each table that the query reads; what says nothing is left out.
function planView({ columns, rows }) {
  if (!rows.length) return ["It reads no table."];
  return rows.map((row) => el("dl", { class: "plan" }, columns.flatMap((column, place) =>
    row[place] === null ? [] : [el("dt", {}, column.replaceAll("_", " ")), el("dd", {}, shown(row[place]))])));
}

function gridView(result) {
  const numeric = result.columns.map((_, place) => result.rows.length > 0 && result.rows.every((row) => row[place] === null || isNumber(row[place])));
  const body = el("tbody"), said = el("span", { class: "faint", role: "status" });
  const more = el("button", { type: "button", onclick: () => fill(STEP) }, "Show more");
  let rows = result.rows, order = null, up = true, count = 0;

  function fill(step) {
    body.append(...rows.slice(count, count + step).map((row) => el("tr", {}, row.map((value, place) => cell(value, numeric[place])))));
    count = Math.min(rows.length, count + step);
    more.hidden = count === rows.length;
    const cut = result.truncated ? ", cut by the server's limit" : "";
    said.textContent = `${count < rows.length ? `${count.toLocaleString("en-US")} of ` : ""}${result.row_count.toLocaleString("en-US")} ${result.row_count === 1 ? "row" : "rows"}${cut}`;
  }

  function sort(place) {
    [order, up] = order !== place ? [place, true] : up ? [place, false] : [null, true];
    rows = order === null ? result.rows : result.rows.toSorted((a, b) => (up ? 1 : -1) * compare(a[place], b[place], numeric[place]));
    heads.forEach((head, index) => head.setAttribute("aria-sort", index !== order ? "none" : up ? "ascending" : "descending"));
    heads.forEach((head, index) => { head.firstChild.textContent = `${result.columns[index]}${index !== order ? "" : up ? " ↑" : " ↓"}`; });
    body.replaceChildren();
    count = 0;
    fill(STEP);
  }

  const heads = result.columns.map((column, place) =>
    el("th", { scope: "col", "aria-sort": "none", class: numeric[place] ? "number" : null }, el("button", { type: "button", onclick: () => sort(place) }, column)));
  fill(STEP);
  return [
    el("div", { class: "grid-scroll", tabindex: "0", role: "region", "aria-label": "Rows" }, el("table", { class: "grid" }, el("thead", {}, el("tr", {}, heads)), body)),
    el("div", { class: "bar" }, said, more, el("span", { class: "grow" }),
      copyButton("Copy CSV", () => toCsv(result.columns, rows)), copyButton("Copy JSON", () => toJson(result.columns, rows))),
  ];
}

function cell(value, isNumeric) {
  return el("td", { class: value === null ? "null" : isNumeric ? "number" : null, title: typeof value === "string" && value.length > 60 ? value : null }, shown(value));
}

const shown = (value) => (value === null ? "NULL" : typeof value === "string" ? value : JSON.stringify(value));

// Whole numbers beyond 2^53 come as texts, and are sorted as the numbers they are.
const isNumber = (value) => typeof value === "number" || (typeof value === "string" && /^-?\d{1,40}(\.\d+)?$/.test(value));

function compare(a, b, isNumeric) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (isNumeric && Number(a) !== Number(b)) return Number(a) - Number(b);
  if (isNumeric && !`${a}${b}`.includes(".")) return BigInt(a) < BigInt(b) ? -1 : Number(BigInt(a) > BigInt(b));
  return shown(a) < shown(b) ? -1 : Number(shown(a) > shown(b));
}

const csvCell = (value) => (value === null ? "" : /[",\r\n]|^$/.test(shown(value)) ? `"${shown(value).replaceAll('"', '""')}"` : shown(value));

export const toCsv = (columns, rows) => [columns, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";

const toJson = (columns, rows) => JSON.stringify(rows.map((row) => Object.fromEntries(columns.map((column, place) => [column, row[place]]))), null, 1);

function copyButton(title, content) {
  const button = el("button", { type: "button" }, title);
  button.addEventListener("click", async () => {
    await copy(content());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = title; }, 1500);
  });
  return button;
}

// Pages without TLS have no clipboard of their own.
async function copy(content) {
  try {
    await navigator.clipboard.writeText(content);
  } catch {
    const scratch = el("textarea", { readonly: true });
    scratch.value = content;
    document.body.append(scratch);
    scratch.select();
    document.execCommand("copy");
    scratch.remove();
  }
}
