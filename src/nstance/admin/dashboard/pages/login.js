// A token for a session. Other ways to log in are offered here too.
import { logIn } from "../api.js";
import { html, Problem, useState } from "../ui.js";

export function Login({ onSession, error: first }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(first);
  async function submit(event) {
    event.preventDefault();
    try {
      onSession(await logIn(token));
    } catch (problem) {
      setError(problem);
    }
  }
  return html`<main class="login"><form class="card stack" onSubmit=${submit}>
    <img src="/dashboard/icon.svg" width="40" height="40" alt="" /><h1>Nstance</h1>
    <label class="field"><span>Token</span><input type="password" autocomplete="current-password" value=${token} onInput=${(event) => setToken(event.currentTarget.value)} required autofocus /></label>
    <p class="muted">The bearer token that <code>nstance-admin serve</code> was started with.</p>
    ${error && html`<${Problem} error=${error} />`}
    <button type="submit" class="primary">Log in</button></form></main>`;
}
