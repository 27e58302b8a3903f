// The frame: session, navigation, and which page is shown.
import { loadSession, logOut, onDenied } from "./api.js";
import { forgetColors } from "./grid.js";
import { ControlPlane } from "./pages/control_plane.js";
import { Events } from "./pages/events.js";
import { Fleet } from "./pages/fleet.js";
import { Forecast } from "./pages/forecast.js";
import { Group } from "./pages/group.js";
import { Instance } from "./pages/instance.js";
import { Login } from "./pages/login.js";
import { store, useStore } from "./store.js";
import { Empty, html, Problem, render, useEffect, useRef, useState } from "./ui.js";

const PAGES = [["fleet", "Fleet"], ["events", "Events"], ["control-plane", "Control plane"], ["forecast", "Forecast"]];

const RETRY_MILLISECONDS = 2000;

function route() {
  const [path, parameters] = location.hash.slice(2).split("?");
  return { parts: (path || "fleet").split("/").map(decoded), parameters: new URLSearchParams(parameters || "") };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch (error) {
    return part; // a mistyped address: the page says that there is no such thing
  }
}

function App() {
  const [session, setSession] = useState(null);
  const [problem, setProblem] = useState(null);
  const [where, setWhere] = useState(route());
  const [, setTheme] = useState(document.documentElement.dataset.theme);
  const hasBegun = useRef(false);

  async function begin() {
    try {
      setSession(await loadSession());
      setProblem(null);
      hasBegun.current = true;
    } catch (error) {
      if (error.status !== 401 && hasBegun.current) {
        setTimeout(begin, RETRY_MILLISECONDS); // the server is busy or away: what is shown stays
        return;
      }
      hasBegun.current = false;
      setSession(null);
      setProblem(error);
    }
  }
  useEffect(() => {
    begin();
    onDenied(begin);
    const onHash = () => {
      setWhere(route());
      window.scrollTo(0, 0);
      document.querySelector("main")?.focus({ preventScroll: true });
    };
    window.addEventListener("hashchange", onHash);
    const system = matchMedia("(prefers-color-scheme: dark)");
    const onScheme = () => {
      forgetColors();
      setTheme(`${document.documentElement.dataset.theme} ${system.matches}`);
    };
    system.addEventListener("change", onScheme);
    return () => window.removeEventListener("hashchange", onHash);
  }, []);
  useEffect(() => {
    if (!session) return undefined;
    store.onDenied = () => setTimeout(begin, 1000);
    store.open();
    return () => store.close();
  }, [session]);

  function toggleTheme() {
    const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const next = isDark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("nstance-theme", next);
    } catch (error) {
      // storage is off: the choice lasts until the page is left
    }
    forgetColors();
    setTheme(next);
  }

  if (!session) {
    if (problem && problem.status === 401) return html`<${Login} onSession=${(found) => { hasBegun.current = true; setSession(found); }} ways=${problem.login} />`;
    if (problem) return html`<main class="login"><${Problem} error=${problem} again=${begin} /></main>`;
    return html`<p class="boot">Loading…</p>`;
  }
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to the content</a>
    <${Header} session=${session} where=${where} toggleTheme=${toggleTheme} onLogOut=${async () => { store.close(); await logOut(); begin(); }} />
    <main id="main" tabindex="-1"><${Page} where=${where} session=${session} /></main>`;
}

function Page({ where, session }) {
  const [page, shard, name] = where.parts;
  switch (page) {
    case "group":
      return html`<${Group} key=${`${shard}/${name}`} session=${session} shard=${shard} name=${name} />`;
    case "instance":
      return html`<${Instance} key=${name} session=${session} shard=${shard} id=${name} />`;
    case "events":
      return html`<${Events} key=${where.parameters.toString()} parameters=${where.parameters} />`;
    case "control-plane":
      return html`<${ControlPlane} />`;
    case "forecast":
      return html`<${Forecast} session=${session} />`;
    case "fleet":
      return html`<${Fleet} session=${session} />`;
    default:
      return html`<div class="page"><${Empty} title=${`There is no page ${page}`}><a href="#/fleet">Back to the fleet</a><//></div>`;
  }
}

function Header({ session, where, toggleTheme, onLogOut }) {
  const current = where.parts[0];
  useEffect(() => {
    const names = { group: where.parts[2], instance: where.parts[2] };
    const page = PAGES.find(([name]) => name === current);
    document.title = `${names[current] || (page ? page[1] : "No page")} · Nstance`;
  });
  return html`<header class="top">
    <a class="brand" href="#/fleet"><img src="/dashboard/icon.svg" width="22" height="22" alt="" /><span>${session.cluster}</span></a>
    <nav aria-label="Pages">${PAGES.map(([name, title]) => html`<a key=${name} href=${`#/${name}`} aria-current=${current === name || (name === "fleet" && ["group", "instance"].includes(current)) ? "page" : undefined}>${title}</a>`)}</nav>
    <div class="top-right"><${Connection} />
      ${!session.can_change && html`<span class="tag" title=${session.role === "viewer" || session.role === "drainer" ? `Your role is ${session.role}` : "Start nstance-admin serve with --allow-changes to act"}>read-only</span>`}
      <button type="button" class="quiet" onClick=${toggleTheme} aria-label="Switch between light and dark">◐</button>
      ${session.person !== "local" && html`<button type="button" class="quiet" onClick=${onLogOut}>Log out</button>`}</div>
  </header>`;
}

function Connection() {
  const { connection } = useStore(200);
  const words = { live: "live", connecting: "connecting", lost: "reconnecting" };
  return html`<span class=${`connection ${connection}`} role="status"><span class="dot" aria-hidden="true"></span>${words[connection]}</span>`;
}

render(html`<${App} />`, document.getElementById("app"));
document.querySelector("#app > .boot[data-static]")?.remove();
