// Calls to the API of this server. Changes repeat the token of the session, which other sites cannot know.
let csrfToken = null;
let denied = () => {};

// `listener`: called when the session has ended.
export function onDenied(listener) {
  denied = listener;
}

export class ApiError extends Error {
  constructor(status, title, detail, login) {
    super(detail);
    this.status = status;
    this.title = title;
    this.login = login || {};
  }
}

export async function call(path, { method = "GET", body, headers = {} } = {}) {
  const options = { method, headers: { Accept: "application/json", ...headers }, credentials: "same-origin" };
  if (csrfToken && method !== "GET") options.headers["X-CSRF-Token"] = csrfToken;
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (problem) {
    throw new ApiError(0, "The server does not answer", "Check that nstance-admin serve is still running.");
  }
  if (answer.status === 401 && path !== "/v1/session") denied();
  const content = await answer.json().catch(() => null);
  if (answer.ok && content) return content;
  throw new ApiError(answer.status, content?.title || answer.statusText, content?.detail || `status ${answer.status}`, content?.login);
}

export function query(values) {
  const used = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return used.length ? `?${new URLSearchParams(used)}` : "";
}

export async function loadSession() {
  const session = await call("/v1/session");
  csrfToken = session.csrf_token;
  return session;
}

export async function logIn(token) {
  const session = await call("/v1/session", { method: "POST", body: { token } });
  csrfToken = session.csrf_token;
  return session;
}

export async function logOut() {
  await call("/v1/session", { method: "DELETE" });
  csrfToken = null;
}
