// The one endpoint, and the token for it, which this tab forgets when it is closed.

const KEPT = "lakefork.token";

export const token = () => sessionStorage.getItem(KEPT) ?? "";
export const keepToken = (text) => sessionStorage.setItem(KEPT, text);
export const forgetToken = () => sessionStorage.removeItem(KEPT);

// What the token says of itself; whether that is true is for the server to know.
export function claims() {
  try {
    const part = token().split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(part), (char) => char.charCodeAt(0))));
  } catch {
    return {};
  }
}

// The answer, whatever its status; status 401 is in it for who asked to sign in again.
export async function post(sql, { namespace, signal } = {}) {
  const body = JSON.stringify(namespace ? { sql, namespace } : { sql });
  const headers = { Authorization: `Bearer ${token()}`, "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch("api/sql", { method: "POST", headers, body, signal });
    return { http: response.status, ...(await response.json()) };
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    const said = response ? `the server answered ${response.status} without JSON` : "the server does not answer";
    return { http: 0, status: "error", results: [], error: { code: "unreachable", message: said } };
  }
}

// The rows of one statement, as objects.
export async function rows(sql) {
  const found = await post(sql);
  if (found.status !== "success") throw new Error(found.error.message);
  const { columns, rows } = found.results[0];
  return rows.map((row) => Object.fromEntries(columns.map((column, place) => [column, row[place]])));
}
