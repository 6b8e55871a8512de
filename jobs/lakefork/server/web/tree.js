// The tables of the catalog, by namespace, with their columns.

import { rows } from "./api.js";
import { byId, el } from "./dom.js";
import { insert, quoted, setNames } from "./editor.js";

const tree = byId("tree"), search = byId("tree-search");
const SYSTEM = new Set(["system", "information_schema"]);
let tables = [], catalog = "";

export async function loadTree(name) {
  catalog = name;
  try {
    const [found, columns, namespaces] = await Promise.all([
      rows("SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY ALL"),
      rows("SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns ORDER BY table_schema, table_name, ordinal_position"),
      rows("SHOW NAMESPACES"),
    ]);
    const byTable = Map.groupBy(columns, (one) => `${one.table_schema}.${one.table_name}`);
    const known = found.map((one) => ({ namespace: one.table_schema, name: one.table_name, kind: one.table_type, columns: byTable.get(`${one.table_schema}.${one.table_name}`) ?? [] }));
    const empty = namespaces.filter((one) => !known.some((table) => table.namespace === one.namespace)).map((one) => ({ namespace: one.namespace, columns: [] }));
    tables = [...known, ...empty];
    setNames(names());
    draw();
  } catch (problem) {
    tree.replaceChildren(el("p", { class: "problem" }, problem.message));
  }
}

function names() {
  const found = new Map();
  for (const { namespace, name, columns } of tables) {
    found.set(namespace, "namespace");
    if (name) found.set(`${namespace}.${name}`, "table");
    for (const { column_name, data_type } of columns) found.set(column_name, data_type);
  }
  return [...found].map(([name, kind]) => ({ name, kind }));
}

function draw() {
  const wanted = search.value.trim().toLowerCase();
  const fitting = tables.filter(({ namespace, name }) => `${namespace}.${name ?? ""}`.toLowerCase().includes(wanted));
  const groups = [...Map.groupBy(fitting, (table) => table.namespace)].sort(([a], [b]) => SYSTEM.has(a) - SYSTEM.has(b) || (a < b ? -1 : 1));
  const lists = groups.map(([namespace, own]) =>
    el("li", {}, el("details", { open: wanted !== "" || !SYSTEM.has(namespace) }, el("summary", {}, namespace), el("ul", {}, own.filter((table) => table.name).map(tableItem)))));
  tree.replaceChildren(el("small", {}, `catalog ${catalog}`), lists.length ? el("ul", {}, lists) : el("p", { class: "faint" }, "no tables"));
}

function tableItem({ namespace, name, kind, columns }) {
  const full = `${quoted(namespace)}.${quoted(name)}`;
  const title = [el("button", { type: "button", class: "link", title: "Insert the name", onclick: (event) => { event.preventDefault(); insert(full); } }, name), " ", el("small", {}, kind.toLowerCase())];
  if (!columns.length) return el("li", {}, title);
  return el("li", {}, el("details", {}, el("summary", {}, title), el("ul", {}, columns.map(({ column_name, data_type }) =>
    el("li", {}, el("button", { type: "button", class: "link", title: "Insert the name", onclick: () => insert(quoted(column_name)) }, column_name), " ", el("small", {}, data_type))))));
}

search.addEventListener("input", draw);
byId("tree-reload").addEventListener("click", () => loadTree(catalog));
