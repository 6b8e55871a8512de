// Requests to the page's own app, and the only request that changes something: it goes to Airflow's API, which checks permissions.

export class Problem extends Error {}

export async function get(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return answer(await fetch(`api/${name}?${new URLSearchParams(given)}`));
}

export async function startRun(job, conf) {
  const body = JSON.stringify({ logical_date: null, conf });
  const headers = { "Content-Type": "application/json" };
  return answer(await fetch(`../api/v2/dags/${encodeURIComponent(job)}/dagRuns`, { method: "POST", headers, body }));
}

async function answer(response) {
  if (response.ok) return response.json();
  const said = await response.json().catch(() => ({}));
  const details = Array.isArray(said.detail) ? said.detail.map((one) => one.msg ?? JSON.stringify(one)) : [said.detail ?? response.statusText];
  const reason = details.map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join("; ");
  throw new Problem(response.status === 401 ? "Your session has ended: log in to Airflow again." : reason);
}

export const airflowPath = (trace) => (trace?.includes(" /dags/") ? `..${trace.slice(trace.indexOf(" ") + 1)}` : null);
