// Builds elements and formats values. Only text nodes are used, so that no name in the lake can become markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// columns: [title, cell(row) → text or node, class]
export function table(columns, rows, empty) {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  const head = el("tr", {}, columns.map(([title, , kind]) => el("th", { class: kind, scope: "col" }, title)));
  const body = rows.map((row) => el("tr", {}, columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row) ?? ""))));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

export function section(title, ...children) {
  return el("section", {}, typeof title === "string" ? el("h2", {}, title) : title, children);
}

export const problemLine = (problem) =>
  el("p", { class: "problem", role: "alert" }, problem instanceof URIError ? "This address is malformed." : problem.message);

// Runs work that loads something into place; on failure shows the reason and leaves the content as it was.
export async function attempt(place, work) {
  place.querySelectorAll(":scope > .problem").forEach((line) => line.remove());
  try {
    await work();
  } catch (problem) {
    place.prepend(problemLine(problem));
  }
}

export const number = (value) => (value ?? 0).toLocaleString("en-US");

export function bytes(count) {
  let size = count ?? 0;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (size < 1000) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${rounded(seconds / size)} ${unit}`;
  }
  return `${rounded(seconds)} s`;
}

const rounded = (value) => (value < 10 ? Number(value.toFixed(1)) : Math.round(value));

export const since = (time) => (time ? duration(Math.max(0, (Date.now() - new Date(time)) / 1000)) : "");

export const clock = (time) => (time ? new Date(time).toISOString().slice(0, 19).replace("T", " ") : "");

export const status = (text) => (text ? el("span", { class: text }, text) : el("span", { class: "faint" }, "never"));

// A link out of the page into Airflow. The page may not navigate Airflow's frame, but a link of the parent window may.
export function airflowLink(address, text) {
  const follow = (event) => {
    if (window.parent === window || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const link = window.parent.document.createElement("a");
    link.href = new URL(address, location.href).href;
    window.parent.document.body.append(link);
    link.click();
    link.remove();
  };
  return el("a", { href: address, onclick: follow }, text);
}

export const path = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
