// Starts runs: a dialog shows what will happen, then the request goes to Airflow.

import { startRun } from "./api.js";
import { airflowLink, el } from "./dom.js";

let mayTrigger = [], needsParams = [];

export function allow(me) {
  [mayTrigger, needsParams] = [me.may_trigger, me.needs_params];
}

// Returns a button, or null if the user may not start the job or parameters are missing. conf: parameters, or a function that returns them when pressed.
export function startButton(job, conf, text = job) {
  const parameters = typeof conf === "function" ? conf : () => conf;
  if (!mayTrigger.includes(job) || (needsParams.includes(job) && !Object.keys(parameters()).length)) return null;
  return el("button", { type: "button", onclick: () => ask(job, parameters()) }, text);
}

function ask(job, conf) {
  const dialog = document.getElementById("start");
  const said = el("p", { role: "status" });
  const go = el("button", { type: "button", class: "main" }, "Start");
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      const run = await startRun(job, chosen(fields));
      const address = `../dags/${encodeURIComponent(job)}/runs/${encodeURIComponent(run.dag_run_id)}`;
      said.replaceChildren("Started: ", airflowLink(address, run.dag_run_id));
      close.textContent = "Close";
      close.focus();
    } catch (problem) {
      said.replaceChildren(el("span", { class: "problem" }, problem.message));
      go.disabled = false;
    }
  });
  const fields = Object.entries(conf).map(([name, value]) => [name, value, field(name, value)]);
  const parameters = fields.flatMap(([name, , input]) => [el("dt", {}, el("label", { for: input.id }, name)), el("dd", {}, input)]);
  dialog.replaceChildren(
    el("h2", { id: "start-title" }, `Start ${job}`),
    parameters.length ? el("dl", {}, parameters) : el("p", { class: "faint" }, "For all catalogs."),
    el("p", { class: "faint" }, "More options: ", airflowLink(`../dags/${job}`, `${job} in Airflow`), ", Trigger."),
    said,
    el("div", { class: "bar" }, go, close),
  );
  dialog.showModal();
  go.focus();
}

function field(name, value) {
  const type = { boolean: "checkbox", number: "number" }[typeof value] ?? "text";
  return el("input", { id: `start-${name}`, type, checked: value === true, value: type === "checkbox" ? null : String(value) });
}

// The parameters for the job, without emptied fields.
function chosen(fields) {
  const values = fields.map(([name, value, input]) => [name, typeof value === "boolean" ? input.checked : typeof value === "number" ? input.valueAsNumber : input.value]);
  return Object.fromEntries(values.filter(([, value]) => value !== "" && !Number.isNaN(value)));
}
