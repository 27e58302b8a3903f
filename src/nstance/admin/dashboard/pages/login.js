// A token for a session. Other ways to log in are offered here too.
import { logIn } from "../api.js";
import { html, Problem, useState } from "../ui.js";

export function Login({ onSession, ways, error: first }) {
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
    ${ways.provider && html`<a class="button primary" href=${ways.provider}>Log in with your account</a>`}
    ${(ways.token || !ways.provider) && html`<label class="field"><span>Token</span><input type="password" autocomplete="current-password" value=${token} onInput=${(event) => setToken(event.currentTarget.value)} required autofocus /></label>
    <p class="muted">From <code>nstance-admin token create</code>, or the one that <code>nstance-admin serve</code> was started with.</p>`}
    ${error && html`<${Problem} error=${error} />`}
    ${(ways.token || !ways.provider) && html`<button type="submit" class="primary">Log in</button>`}</form></main>`;
}
