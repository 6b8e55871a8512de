// The views: each takes the parts of the address and returns the elements to show.

import { airflowPath, get } from "./api.js";
import { lag, overlaps, throughput } from "./charts.js";
import { airflowLink, attempt, bytes, clock, duration, el, number, path, section, since, status, table } from "./dom.js";
import { startButton } from "./start.js";

const SPANS = ["6h", "24h", "7d", "30d"];

export async function overview() {
  const [found, charts, catalogs] = await Promise.all([get("overview"), flushCharts(), catalogList({})]);
  const { totals } = found;
  return [
    el("div", { class: "cards" },
      card(totals.forks ? `catalogs, ${number(totals.forks)} forks` : "catalogs", number(totals.catalogs)), card("tables", number(totals.tables)),
      card(totals.hot ? `waiting, ${since(totals.oldest_at)}` : "rows waiting", number(totals.hot)),
      card("files", number(totals.files)), card("rows in files", number(totals.rows)), card("in files", bytes(totals.bytes)),
      card("running", number(totals.running)), card("failed, 24 h", number(totals.failed_today), totals.failed_today ? "failed" : ""),
      totals.live_queries ? card(`live queries, ${number(Math.round(totals.live_rate))} messages/s, ${number(totals.live_resyncs)} resyncs, ${Math.round(totals.live_look_seconds * 1000)} ms a look`, number(totals.live_queries)) : null),
    charts,
    section(withButton("Waiting for a flush", startButton("flush", {}, "Flush what is due")), waitingTable(found.waiting)),
    section("Jobs", jobsTable(found.jobs)),
    found.failures.length ? section("Last failures", runsTable(found.failures)) : null,
    catalogs,
  ];
}

const card = (name, value, kind = "") => el("div", { class: "card" }, el("b", { class: kind }, value), el("span", {}, name));

const withButton = (title, ...buttons) => el("div", { class: "bar" }, el("h2", { class: "grow" }, title), buttons);

function waitingTable(rows) {
  return table([
    ["table", (row) => tableLink(row.catalog, row.namespace, row.table)],
    ["versions", (row) => number(row.versions), "number"],
    ["users", (row) => number(row.users), "number"],
    ["oldest", (row) => duration(row.oldest_seconds), "number"],
    ["flushed at", (row) => policy(row)],
    ["superseded in files", (row) => atMost(row.superseded_share), "number"],
    ["", (row) => (row.is_due ? el("span", { class: "due" }, "due") : "")],
    ["", (row) => startButton("flush", { catalog: row.catalog, namespace: row.namespace, table: row.table, force: true }, "Flush now"), "buttons"],
  ], rows, "No rows wait: all are in files.");
}

// The share of rows in files that may have a newer version in another one.
const atMost = (share) => (share === null ? "–" : share ? `≤ ${Math.round(100 * share)} %` : "none");

function policy(row) {
  const limits = [row.max_versions && `${number(row.max_versions)} rows`, row.max_seconds && duration(row.max_seconds)];
  return limits.filter(Boolean).join(" or ") || "request only";
}

function jobsTable(rows) {
  return table([
    ["job", (row) => el("a", { href: `#/runs?job=${row.job}` }, row.job)],
    ["last run", (row) => status(row.status)],
    ["started (UTC)", (row) => clock(row.start_time), "time"],
    ["next (UTC)", (row) => (row.is_paused ? "paused" : clock(row.next_run)), "time"],
    ["message", (row) => row.error_message, "long"],
    ["", (row) => startButton(row.job, {}, "Start"), "buttons"],
  ], rows, "No jobs.");
}

async function flushCharts(catalog = null) {
  const place = el("div", { class: "pair" });
  const choice = el("select", { "aria-label": "Span of time", onchange: () => attempt(place, draw) }, SPANS.map((span) => el("option", { selected: span === SPANS[0] }, span)));
  const draw = async () => {
    const flushed = await get("flushed", { span: choice.value, catalog });
    place.replaceChildren(...(flushed.points.length ? [throughput(flushed), lag(flushed)] : [el("p", { class: "empty" }, "Nothing was flushed in this time.")]));
  };
  await draw();
  return section(el("div", { class: "bar" }, el("h2", { class: "grow" }, "Flushes over time (UTC)"), choice), place);
}

export const catalogs = async (_, query) => [await catalogList({ search: query.get("search") ?? "" }, true)];

// A list that is searched and paged on the server, used for catalogs and tables.
async function pagedList(title, name, fixed, search, columns, empty, focus) {
  const place = el("div");
  let timer;
  const box = el("input", { type: "search", value: search, placeholder: "search", "aria-label": `search ${title}`, oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => turnTo([null]), 200);
  } });
  const turnTo = (way) => attempt(place, () => load(way));
  const load = async (way) => { // the start keys of the pages up to this one
    const page = await get(name, { ...fixed, search: box.value, after: way.at(-1) });
    const back = el("button", { type: "button", disabled: way.length < 2, onclick: () => turnTo(way.slice(0, -1)) }, "Previous");
    const next = el("button", { type: "button", disabled: page.next === null, onclick: () => turnTo([...way, page.next]) }, "Next");
    place.replaceChildren(table(columns, page.rows, box.value ? "No match." : empty), way.length > 1 || page.next !== null ? el("div", { class: "pages" }, back, next) : "");
  };
  await load([null]);
  if (focus) queueMicrotask(() => box.focus());
  return section(el("div", { class: "bar" }, el("h2", { class: "grow" }, title), box), place);
}

const COUNTS = [
  ["waiting", (row) => number(row.hot), "number"],
  ["oldest", (row) => since(row.oldest_at), "number"],
  ["files", (row) => number(row.files), "number"],
  ["rows", (row) => number(row.rows), "number"],
  ["bytes", (row) => bytes(row.bytes), "number"],
];

function catalogList({ search = "" }, focus = false) {
  return pagedList("Catalogs", "catalogs", {}, search, [
    ["catalog", (row) => el("a", { href: path("catalog", row.name) }, row.name)],
    ["tables", (row) => number(row.tables), "number"],
    ...COUNTS,
    ["created (UTC)", (row) => clock(row.created_at), "time"],
  ], "No catalog yet: `lakefork init` creates one.", focus);
}

export async function catalog([name]) {
  const tables = await pagedList("Tables", "tables", { catalog: name }, "", [
    ["table", (row) => tableLink(name, row.namespace, row.table, `${row.namespace}.${row.table}`)],
    ["kind", (row) => row.kind],
    ...COUNTS,
  ], "No table yet.");
  return [
    el("div", { class: "bar" }, el("h1", { class: "grow" }, name), startButton("flush", { catalog: name, force: false }, "Flush"),
      startButton("snapshot_dedup", { catalog: name }, "Dedup"), startButton("catalog_fsck", { catalog: name, deep: true }, "Check"),
      startButton("fork_provision", () => ({ parent: name, name_prefix: freePrefix(name), count: 1, expires_after: "7d" }), "Fork")),
    tables,
    await flushCharts(name),
    section("Effect of dropping this catalog", reclaimed(await get("reclaim", { catalog: name }))),
  ];
}

// A prefix, to which the job adds a number. It is unique unless somebody forks the same catalog in the same second.
const freePrefix = (name) => `${name.slice(0, 75)}_${clock(new Date()).replaceAll(/[-:]/g, "").replace(" ", "T")}_`;

export async function forks(_, query) {
  const place = el("div");
  const show = async () => place.replaceChildren(await branch(null, box.value));
  let timer;
  const box = el("input", { type: "search", value: query.get("search") ?? "", placeholder: "search", "aria-label": "search forks", oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => attempt(place, show), 200);
  } });
  await show();
  return [el("h1", {}, "Forks"), section(el("div", { class: "bar" }, el("h2", { class: "grow" }, "Catalogs and their forks"), box), place)];
}

// One level of the tree, or the matches in all of it; the levels below are loaded when opened.
async function branch(parent, search = null) {
  const list = el("ul", { class: "tree" });
  const load = async (after) => {
    const page = await get("forks", { parent, search, after });
    list.querySelector(":scope > li.more")?.remove();
    list.append(...page.rows.map(leaf));
    if (page.next !== null) list.append(el("li", { class: "more" }, el("button", { type: "button", onclick: () => attempt(list, () => load(page.next)) }, "More")));
  };
  await load(null);
  return list.children.length ? list : el("p", { class: "empty" }, search ? "No match." : "No catalog yet.");
}

function leaf(row) {
  const words = [row.parent && `from ${row.parent}`, `${bytes(row.own_bytes)} own`, row.shared_files && `${bytes(row.shared_bytes)} shared`,
    row.forked_at_snapshot !== null && `of snapshot ${row.forked_at_snapshot}`, row.expires_at && `expires ${clock(row.expires_at)}`];
  const line = [el("a", { href: path("catalog", row.name) }, row.name), " ", el("span", { class: "faint" }, words.filter(Boolean).join(", "))];
  if (!row.forks) return el("li", {}, line);
  const below = el("div");
  const open = (event) => {
    if (event.target.open && !below.querySelector("ul")) attempt(below, async () => below.replaceChildren(await branch(row.name)));
  };
  return el("li", {}, el("details", { ontoggle: open }, el("summary", {}, line, " ", el("b", {}, `${number(row.forks)} fork(s)`)), below));
}

function reclaimed({ rows, next }) {
  const [freed, kept] = [rows.find((row) => row.pinned_by === null), rows.filter((row) => row.pinned_by !== null)];
  return [
    el("p", {}, `Dropping this catalog would free ${number(freed?.files)} file(s), ${bytes(freed?.bytes)}, once its snapshots have expired.`),
    kept.length ? table([
      ["kept by", (row) => el("a", { href: path("catalog", row.pinned_by) }, row.pinned_by)],
      ["files", (row) => number(row.files), "number"],
      ["bytes", (row) => bytes(row.bytes), "number"],
    ], kept, "") : null,
    next === null ? null : el("p", { class: "faint" }, "and others: `lakefork forks NAME --reclaim` lists all"),
  ];
}

const tableLink = (catalog, namespace, name, text = `${catalog}.${namespace}.${name}`) => el("a", { href: path("table", catalog, namespace, name) }, text);

export async function oneTable([catalogName, namespace, name], query) {
  const [snapshot, user] = [query.get("snapshot"), query.get("user")];
  const found = await get("table", { catalog: catalogName, namespace, table: name, snapshot, user });
  const where = { catalog: catalogName, namespace, table: name };
  const here = path("table", catalogName, namespace, name);
  return [
    el("div", { class: "bar" },
      el("h1", { class: "grow" }, el("a", { href: path("catalog", catalogName) }, catalogName), `.${namespace}.${name}`),
      startButton("flush", { ...where, force: true }, "Flush now"), startButton("snapshot_dedup", where, "Dedup"),
      startButton("manifest_rebuild", { ...where, check_only: true }, "Check manifests")),
    el("div", { class: "cards" },
      card("rows in files", number(found.rows)),
      card("files", number(found.files)), card("in files", bytes(found.bytes)), card("older files", number(found.retained_files)),
      card(`superseded${found.superseded_files < found.files ? `, of the first ${number(found.superseded_files)} files` : ""}`, atMost(found.superseded_share)),
      card("rows waiting", number(found.hot)), card("oldest waiting", since(found.oldest_at) || "none")),
    el("p", { class: "faint" }, `A ${found.definition.tags.kind ?? "SHARED"} table, flushed at ${policy(found)}; the first key column is ${found.key.name}.`),
    section(batchesTitle(found, snapshot, user, here), picture(found), batchesTable(found, here)),
    section("Manifests", manifests(found)),
    section("Snapshots", snapshotsTable(found.snapshots, here, `${namespace}.${name}`)),
    section("Schema history", schemaTable(found.versions)),
  ];
}

function batchesTitle(found, snapshot, user, here) {
  const words = [snapshot && `at snapshot ${snapshot}`, user && `of ${user}`, found.more_batches && `the first ${found.batches.length}`].filter(Boolean);
  return el("div", { class: "bar" }, el("h2", { class: "grow" }, `Batches${words.length ? ` (${words.join(", ")})` : ""} by ${found.key.name}`),
    snapshot || user ? el("a", { href: here }, "show all, now") : null);
}

function picture(found) {
  if (found.shows_bounds) return overlaps(found.batches, found.key);
  return el("p", { class: "empty" }, "Keys of rows are shown to those who may read Airflow's connection lakefork.");
}

function batchesTable(found, here) {
  const rows = found.batches, shown = rows.slice(0, 50);
  const bounds = [["smallest key", (row) => row.low], ["largest key", (row) => row.high]];
  const more = rows.length > shown.length ? el("p", { class: "faint" }, `and ${rows.length - shown.length} more in the picture`) : null;
  return el("details", {}, el("summary", {}, "as a list"), table([
    ["file", (row) => el("code", {}, row.path.split("/").slice(-2).join("/")), "long"],
    ["owner", (row) => (row.user_id ? el("a", { href: `${here}?user=${encodeURIComponent(row.user_id)}` }, row.user_id) : "shared")],
    ["rows", (row) => number(row.rows), "number"],
    ["bytes", (row) => bytes(row.bytes), "number"],
    ...(found.shows_bounds ? bounds : []),
  ], shown, "No files yet."), more);
}

function manifests(found) {
  const states = Object.entries(found.manifests_cached).map(([state, count]) => `${number(count)} ${state.replace("_", " ")}`);
  const pending = found.manifests_pending ? `; ${number(found.manifests_pending)} do not show the last publish yet` : "";
  return el("p", {}, `Cached: ${states.join(", ") || "none"}${pending}.`);
}

function snapshotsTable(rows, here, name) {
  return table([
    ["snapshot", (row) => el("a", { href: `${here}?snapshot=${row.snapshot_id}`, title: "show the batches of this snapshot" }, String(row.snapshot_id)), "number"],
    ["time (UTC)", (row) => clock(row.snapshot_time), "time"],
    ["by", (row) => row.author],
    ["files", (row) => `+${row.files_added} −${row.files_removed}`, "number"],
    ["rows", (row) => number(row.rows), "number"],
    ["query", (row) => el("code", {}, `SELECT * FROM ${name} AT (VERSION => ${row.snapshot_id})`), "long"],
  ], rows, "Nothing published yet.");
}

function schemaTable(rows) {
  const named = (row) => row.columns.filter((column) => !column.name.startsWith("_")).map((column) => `${column.name} ${column.type}`);
  return table([
    ["version", (row) => String(rows.length - rows.indexOf(row)), "number"],
    ["since snapshot", (row) => String(row.begin_snapshot), "number"],
    ["time (UTC)", (row) => clock(row.snapshot_time), "time"],
    ["columns", (row) => el("code", {}, named(row).join(", ")), "long"],
  ], rows, "No definitions.");
}

export async function runs(_, query) {
  const [job, state] = [query.get("job") ?? "", query.get("status") ?? ""];
  const go = (changed) => { location.hash = `#/runs?${new URLSearchParams({ job, status: state, ...changed })}`; };
  const choose = (label, name, value, options) => el("select", { "aria-label": label, onchange: (event) => go({ [name]: event.target.value }) },
    options.map(([option, text]) => el("option", { value: option, selected: option === value }, text)));
  const jobs = (await get("overview")).jobs.map((row) => row.job).sort();
  return [
    el("div", { class: "bar" }, el("h1", { class: "grow" }, "Runs"),
      choose("job", "job", job, [["", "all jobs"], ...jobs.map((name) => [name, name])]),
      choose("status", "status", state, [["", "any status"], ["running", "running"], ["completed", "completed"], ["failed", "failed"]])),
    copiesSection(await get("copies")),
    await older("runs", { job, status: state }, runsTable),
  ];
}

function copiesSection(rows) {
  if (!rows.length) return null;
  return section("Copies", table([
    ["started (UTC)", (row) => clock(row.started_at), "time"],
    ["copy", (row) => el("code", {}, row.copy_id)],
    ["from", (row) => row.source],
    ["to", (row) => row.target],
    ["status", (row) => el("span", { class: row.status }, row.status === "running" ? `running: ${row.phase}` : row.status)],
    ["tables", (row) => number(row.tables), "number"],
    ["parts", (row) => `${number(row.parts_done)} of ${number(row.parts)}`, "number"],
    ["rows", (row) => number(row.rows_done), "number"],
    ["copied", (row) => `${bytes(row.bytes_done)} of ${bytes(row.bytes)}`, "number"],
    ["left", (row) => (row.status === "running" ? duration(row.seconds_left) : ""), "number"],
    ["problem", (row) => row.error ?? "", "long"],
  ], rows, ""));
}

// A list by time, newest first, extended on request.
async function older(name, fixed, show) {
  const rows = [];
  const place = el("section");
  const load = async (before) => {
    const page = await get(name, { ...fixed, before });
    rows.push(...page.rows);
    const more = page.next === null ? null : el("button", { type: "button", onclick: () => attempt(place, () => load(page.next)) }, "Older");
    place.replaceChildren(show(rows), more ? el("div", { class: "pages" }, more) : "");
  };
  await load(null);
  return place;
}

function runsTable(rows) {
  return table([
    ["job", (row) => row.job_type],
    ["status", (row) => status(row.status)],
    ["started (UTC)", (row) => clock(row.start_time), "time"],
    ["took", (row) => (row.end_time ? duration((new Date(row.end_time) - new Date(row.start_time)) / 1000) : since(row.start_time)), "number"],
    ["try", (row) => String(row.retries + 1), "number"],
    ["memory", (row) => (row.memory_used_mb ? `${number(row.memory_used_mb)} MB` : ""), "number"],
    ["message", (row) => row.error_message ?? said(row.result), "long"],
    ["parameters", (row) => row.parameters.filter((one) => !one.endsWith("=false")).join(" ")],
    ["", (row) => logLink(row), "buttons"],
  ], rows, "No runs yet.");
}

function said(result) {
  const shown = Object.entries(result ?? {}).filter(([name, value]) => value && !["run_id", "job", "peak_memory_mb", "seconds"].includes(name));
  return shown.map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "number" ? number(value) : value}`).join(", ");
}

function logLink(row) {
  const address = airflowPath(row.trace);
  return address ? airflowLink(address, "log") : el("span", { class: "faint" }, row.trace);
}

export async function audits(_, query) {
  const [run, failed] = [query.get("run") ?? "", query.get("failed") === "true"];
  const toggle = el("a", { href: `#/audits?failed=${!failed}` }, failed ? "show all" : "only failed");
  return [
    el("div", { class: "bar" }, el("h1", { class: "grow" }, run ? `Audits of ${run}` : "Audits of flushes"), toggle),
    await older("audits", { run, failed }, auditsTable),
  ];
}

function auditsTable(rows) {
  return table([
    ["audited (UTC)", (row) => clock(row.audited_at), "time"],
    ["result", (row) => el("span", { class: row.success ? "completed" : "failed" }, row.success ? "passed" : "failed")],
    ["table", (row) => (row.table_name ? tableLink(row.catalog_name, row.namespace, row.table_name) : `${row.catalog_name}: dropped`)],
    ["files", (row) => number(row.files), "number"],
    ["expectations", (row) => expectations(row), "long"],
    ["run", (row) => el("a", { href: `#/audits?run=${encodeURIComponent(row.run_id)}` }, row.run_id)],
  ], rows, "No audits yet: every flush runs one.");
}

function expectations(row) {
  const wrong = row.results.filter((one) => !one.success);
  const lines = (wrong.length ? wrong : row.results).map((one) => el("div", {}, `${one.about}${one.success ? "" : `: ${one.error ?? `${one.rows ?? "some"} row(s) violate this`}`}`));
  const files = row.quarantine ? el("div", {}, "files: ", el("code", {}, row.quarantine)) : null;
  return el("details", { open: !row.success }, el("summary", {}, wrong.length ? `${wrong.length} not met` : `${row.results.length} met`), lines, files);
}

export async function gc() {
  const found = await get("gc");
  const { totals } = found;
  return [
    el("div", { class: "bar" }, el("h1", { class: "grow" }, "Retention and cleanup"),
      startButton("retention_gc", { dry_run: true }, "Plan retention"), startButton("file_cleanup", { dry_run: true }, "Plan cleanup")),
    el("div", { class: "cards" },
      card("files to delete", number(totals.files)), card("bytes to free", bytes(totals.bytes)), card("oldest of them", since(totals.oldest_at) || "none"),
      card("files deleted", number(totals.removed_files)), card("freed so far", bytes(totals.removed_bytes))),
    section("Plans", plansTable(found.plans)),
    section("Pinned snapshots", pinnedTable(found.pinned)),
    el("h2", {}, "Deleted files"),
    await older("deletions", {}, deletionsTable),
  ];
}

const known = (value, format) => (value === null ? "" : format(value));

function plansTable(rows) {
  return table([
    ["plan", (row) => el("code", {}, row.plan_id)],
    ["job", (row) => row.job],
    ["created (UTC)", (row) => clock(row.created_at), "time"],
    ["carried out (UTC)", (row) => clock(row.done_at) || (row.begun_at ? "started" : "not yet"), "time"],
    ["catalogs", (row) => known(row.catalogs, number), "number"],
    ["snapshots", (row) => known(row.snapshots, number), "number"],
    ["files", (row) => known(row.files, number), "number"],
    ["bytes", (row) => known(row.bytes, bytes), "number"],
    ["files freed", (row) => known(row.freed_files, number), "number"],
    ["bytes freed", (row) => known(row.freed_bytes, bytes), "number"],
  ], rows, "No plans yet: retention_gc makes one every night.");
}

function pinnedTable(rows) {
  return table([
    ["catalog", (row) => el("a", { href: path("catalog", row.catalog) }, row.catalog)],
    ["tag", (row) => row.name],
    ["snapshot", (row) => String(row.snapshot_id), "number"],
    ["since (UTC)", (row) => clock(row.tagged_at), "time"],
    ["by", (row) => row.tagged_by],
  ], rows, "None: `lakefork tag CATALOG SNAPSHOT NAME` pins one.");
}

function deletionsTable(rows) {
  return table([
    ["decided (UTC)", (row) => clock(row.decided_at), "time"],
    ["outcome", (row) => (row.restored_at ? "restored" : row.outcome ?? "decided")],
    ["file", (row) => el("code", {}, row.path), "long"],
    ["bytes", (row) => bytes(row.bytes), "number"],
    ["last catalog", (row) => row.last_catalog],
    ["last snapshot", (row) => String(row.last_snapshot ?? ""), "number"],
    ["reason", (row) => row.reason],
  ], rows, "No files deleted yet.");
}
