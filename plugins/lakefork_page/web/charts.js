// Small charts, drawn here as SVG without a library.

import { bytes, duration, el, number, svg } from "./dom.js";

const WIDTH = 640, HEIGHT = 170, LEFT = 58, BOTTOM = 22, TOP = 10;

export function throughput(flushed) {
  const total = flushed.points.reduce((sum, point) => sum + point.rows, 0);
  const size = flushed.points.reduce((sum, point) => sum + point.bytes, 0);
  const label = `Rows flushed: ${number(total)} (${bytes(size)} written)`;
  return frame(flushed, label, (point) => point.rows, short, (x, y, step, point) =>
    svg("rect", { class: "bars", x: x - step / 2 + 0.5, y, width: Math.max(1, step - 1), height: HEIGHT - BOTTOM - y },
      svg("title", {}, `${point.at.slice(0, 16).replace("T", " ")}: ${number(point.rows)} rows, ${bytes(point.bytes)}`)));
}

export function lag(flushed) {
  const worst = flushed.points.reduce((most, point) => Math.max(most, point.waited_seconds ?? 0), 0);
  const label = `How long the oldest row had waited when it was flushed: at most ${duration(worst)}`;
  return frame(flushed, label, (point) => point.waited_seconds, duration, (x, y, step, point) =>
    svg("circle", { class: "dot", cx: x, cy: y, r: 3 },
      svg("title", {}, `${point.at.slice(0, 16).replace("T", " ")}: ${duration(point.waited_seconds)}`)), "lag");
}

function frame(flushed, label, value, format, mark, line) {
  const points = flushed.points.filter((point) => value(point) !== null);
  const figure = el("figure", { class: "chart" }, el("figcaption", { class: "faint" }, label));
  if (!points.length) return figure;
  const end = Date.now(), begin = end - flushed.seconds * 1000;
  const most = Math.max(...points.map(value), 1e-9);
  const x = (time) => LEFT + ((new Date(time) - begin) / (end - begin)) * (WIDTH - LEFT - 8);
  const y = (amount) => HEIGHT - BOTTOM - (amount / most) * (HEIGHT - BOTTOM - TOP);
  const step = (flushed.step / flushed.seconds) * (WIDTH - LEFT - 8);
  const middle = (point) => Math.max(LEFT + 1, Math.min(x(point.at) + step / 2, WIDTH - 8));
  const shapes = points.map((point) => mark(middle(point), y(value(point)), step, point));
  if (line) shapes.unshift(svg("polyline", { class: line, points: points.map((point) => `${middle(point)},${y(value(point))}`).join(" ") }));
  figure.append(svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    [0, 0.5, 1].map((share) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(most * share), y2: y(most * share) }),
      svg("text", { x: LEFT - 6, y: y(most * share) + 4, "text-anchor": "end" }, format(most * share)),
    ]).flat(),
    [0, 0.25, 0.5, 0.75, 1].map((share) => svg("text", { x: LEFT + share * (WIDTH - LEFT - 8), y: HEIGHT - 6,
      "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, moment(begin + share * (end - begin), flushed.seconds))),
    shapes));
  return figure;
}

function short(amount) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (amount >= size) return `${Number((amount / size).toPrecision(2))}${unit}`;
  return String(Math.round(amount));
}

function moment(time, seconds) {
  const text = new Date(time).toISOString();
  return seconds <= 86400 ? text.slice(11, 16) : text.slice(5, 10);
}

// Batches as bars from their smallest to their largest key: where bars of one owner overlap, several may hold the same key.
export function overlaps(batches, key) {
  const known = batches.filter((batch) => batch.low !== null && batch.high !== null);
  if (!known.length) return el("p", { class: "empty" }, "No batch with known bounds.");
  const place = scale(known, key.type);
  const left = 150, width = 1000, row = 11;
  let y = 16, owner;
  const shapes = [];
  for (const batch of known) {
    if (batch.user_id !== owner) {
      owner = batch.user_id;
      y += 6;
      shapes.push(svg("text", { class: "owner", x: 0, y: y + 9 }, clipped(owner ?? "shared")));
    }
    const [from, to] = [batch.low, batch.high].map((bound) => left + place(bound) * (width - left));
    const name = batch.path.split("/").pop();
    shapes.push(svg("rect", { class: "batch", x: from, y, width: Math.max(2, to - from), height: row - 2, rx: 2 },
      svg("title", {}, `${name}: ${key.name} ${batch.low} … ${batch.high}, ${number(batch.rows)} rows, ${bytes(batch.bytes)}`)));
    y += row;
  }
  const label = `${known.length} batches by ${key.name}`;
  return svg("svg", { viewBox: `0 0 ${width} ${y + 6}`, role: "img", "aria-label": label },
    svg("text", { x: left, y: 10 }, `${key.name} ${clipped(extreme(known, "low", place, -1))}`),
    svg("text", { x: width, y: 10, "text-anchor": "end" }, clipped(extreme(known, "high", place, 1))), shapes);
}

const clipped = (text) => (text.length > 22 ? `${text.slice(0, 21)}…` : text);

function extreme(batches, bound, place, sign) {
  return batches.map((batch) => batch[bound]).reduce((best, one) => (sign * (place(one) - place(best)) > 0 ? one : best));
}

// Places numbers by value, everything else by rank among the bounds.
function scale(batches, type) {
  const bounds = batches.flatMap((batch) => [batch.low, batch.high]);
  if (/int|float|decimal/.test(type)) {
    const values = bounds.map(Number), least = Math.min(...values), most = Math.max(...values);
    return (bound) => (most > least ? (Number(bound) - least) / (most - least) : 0);
  }
  const ranks = new Map([...new Set(bounds)].sort().map((bound, rank) => [bound, rank]));
  return (bound) => (ranks.size > 1 ? ranks.get(bound) / (ranks.size - 1) : 0);
}
