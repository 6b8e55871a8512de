// The editor: a plain text area over a painted copy of its text, names completed as they are typed, errors at their place.

import { byId, el } from "./dom.js";

const WORDS = new Set(("ADD ALL ALTER AND AS ASC AT BACKUP BETWEEN BY CASE CAST COLUMN CREATE CROSS DATABASE DEFAULT DELETE DESC DESCRIBE DISTINCT DROP ELSE END EXISTS " +
  "EXPLAIN FALSE FLUSH FROM FULL GROUP HAVING IF IN INNER INSERT INTERVAL INTO IS JOIN KEY LEFT LIKE LIMIT LOCATION NAMESPACE NAMESPACES NOT NULL OFFSET ON OPTIONS OR ORDER OUTER OVER " +
  "PARTITION POLICY PRIMARY RENAME RESTORE RIGHT SELECT SET SHARED SHOW STATS STREAM TABLE TABLES THEN TIMESTAMP TO TRUE UNION UPDATE USER USING VALUES VERSION WHEN WHERE WITH").split(" "));
const PARTS = /(?<note>--[^\n]*|\/\*[^]*?(?:\*\/|$))|(?<text>'(?:[^']|'')*(?:'|$))|(?<quoted>"(?:[^"]|"")*(?:"|$))|(?<word>[\p{L}_][\p{L}\p{N}_]*)|(?<figure>\d[\d.]*)/gu;
const TYPED = /[\p{L}_][\p{L}\p{N}_]*(?:\.[\p{L}\p{N}_]*)?$/u;
const MOST_NAMES = 50;
const PLAIN = /^[a-z_][a-z0-9_]*$/;

const text = byId("text"), paint = byId("paint"), list = byId("names");
let known = [], shown = [], chosen = 0, from = 0, wrong = null;

// A name as SQL has to write it.
export const quoted = (name) => (PLAIN.test(name) && !WORDS.has(name.toUpperCase()) ? name : `"${name.replaceAll('"', '""')}"`);

// names: { name, kind } to complete besides the words of SQL.
export function setNames(names) {
  known = [...names, ...[...WORDS].sort().map((name) => ({ name, kind: "" }))];
}

export function setText(value) {
  text.value = value;
  changed();
}

export function insert(value) {
  text.focus();
  text.setRangeText(value, text.selectionStart, text.selectionEnd, "end");
  changed();
}

export const selected = () => text.value.slice(text.selectionStart, text.selectionEnd);

// The statement that the cursor is in; semicolons in strings, names and comments do not end one.
export function statementAtCursor() {
  const ends = [...text.value.matchAll(new RegExp(`${PARTS.source}|(?<end>;)`, "gu"))].filter((part) => part.groups.end).map((part) => part.index);
  const start = Math.max(-1, ...ends.filter((end) => end < text.selectionStart)) + 1;
  return text.value.slice(start, ends.find((end) => end >= text.selectionStart) ?? text.value.length).trim();
}

// Marks the place of an error, line and column from 1, in the part of the text that begins at start.
export function markError(line, column, start = 0) {
  const lines = text.value.slice(start).split("\n");
  let place = start;
  for (const before of lines.slice(0, line - 1)) place += before.length + 1;
  place = Math.min(text.value.length, place + [...(lines[line - 1] ?? "")].slice(0, column - 1).join("").length);
  const word = /^[\p{L}\p{N}_]+/u.exec(text.value.slice(place));
  wrong = [place, place + (word ? word[0].length : 1)];
  text.focus();
  text.setSelectionRange(place, place);
  repaint();
}

function repaint() {
  const value = text.value, nodes = [];
  let last = 0;
  for (const part of value.matchAll(PARTS)) {
    const kind = part.groups.note ? "note" : part.groups.text ? "text" : part.groups.figure ? "figure" : part.groups.word && WORDS.has(part[0].toUpperCase()) ? "word" : null;
    if (!kind || (wrong && part.index < wrong[1] && part.index + part[0].length > wrong[0])) continue;
    nodes.push(...marked(value, last, part.index), el("span", { class: kind }, part[0]));
    last = part.index + part[0].length;
  }
  paint.replaceChildren(...nodes, ...marked(value, last, value.length), "\n");
  paint.scrollTop = text.scrollTop;
}

function marked(value, start, end) {
  if (!wrong || wrong[0] < start || wrong[0] >= Math.max(end, start + 1)) return [value.slice(start, end)];
  return [value.slice(start, wrong[0]), el("mark", {}, value.slice(wrong[0], wrong[1]) || " "), value.slice(wrong[1], end)];
}

function changed() {
  wrong = null;
  repaint();
}

function complete(always) {
  const typed = TYPED.exec(text.value.slice(0, text.selectionStart))?.[0] ?? "";
  from = text.selectionStart - typed.length;
  const start = typed.toLowerCase();
  const fits = known.filter(({ name }) => name.toLowerCase().startsWith(start) && name.toLowerCase() !== start);
  shown = (typed.length > 1 || always) && text.selectionStart === text.selectionEnd ? fits.slice(0, MOST_NAMES) : [];
  chosen = 0;
  show();
}

function show() {
  list.hidden = !shown.length;
  list.replaceChildren(...shown.map(({ name, kind }, place) =>
    el("li", { role: "option", id: `name-${place}`, "aria-selected": String(place === chosen), onmousedown: (event) => { event.preventDefault(); take(place); } }, name, el("small", {}, kind))));
  if (!shown.length) return text.removeAttribute("aria-activedescendant");
  text.setAttribute("aria-activedescendant", `name-${chosen}`);
  list.children[chosen].scrollIntoView({ block: "nearest" });
  const at = caret(), frame = byId("editor").getBoundingClientRect();
  list.style.left = `${Math.max(0, Math.min(at.left - frame.left, frame.width - list.offsetWidth))}px`;
  list.style.top = `${at.bottom - frame.top + 2}px`;
}

// Where the cursor is on the screen: the painted copy has the same text at the same places.
function caret() {
  const walker = document.createTreeWalker(paint, NodeFilter.SHOW_TEXT), range = document.createRange();
  let left = from;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (left <= node.length) {
      range.setStart(node, left);
      range.setEnd(node, Math.min(node.length, left + 1));
      return range.getBoundingClientRect();
    }
    left -= node.length;
  }
  return text.getBoundingClientRect();
}

function take(place) {
  const { name, kind } = shown[place];
  text.setRangeText(kind ? name.split(".").map(quoted).join(".") : name, from, text.selectionStart, "end");
  close();
  changed();
}

function close() {
  shown = [];
  show();
}

// Returns whether the key was for the list of names.
export function onNamesKey(event) {
  if (event.ctrlKey && event.code === "Space") {
    event.preventDefault();
    complete(true);
    return true;
  }
  if (list.hidden || event.ctrlKey || event.altKey) return false;
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) chosen = (chosen + step + shown.length) % shown.length;
  else if (event.key === "Enter" || event.key === "Tab") take(chosen);
  else if (event.key === "Escape") close();
  else return false;
  event.preventDefault();
  if (step) show();
  return true;
}

text.addEventListener("input", () => { changed(); complete(false); });
text.addEventListener("scroll", () => { paint.scrollTop = text.scrollTop; });
text.addEventListener("blur", close);
text.addEventListener("click", close);
new ResizeObserver(() => { paint.style.height = `${text.offsetHeight}px`; }).observe(text);
setNames([]);
repaint();
