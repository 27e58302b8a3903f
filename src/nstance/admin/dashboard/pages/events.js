// The history with filters, followed live.
import { call, query } from "../api.js";
import { useStore } from "../store.js";
import { dateTime, Empty, html, link, number, Problem, useAnswer, useEffect, useRef, useState, VirtualRows, when } from "../ui.js";

const KNOWN = ["scale-up", "scale-down", "replace", "gone", "spot-termination", "shutdown", "suspect", "recovered", "unhealthy", "config-drift", "forced-expiry", "eligible-expiry", "ondemand-expiry", "requested", "unregistered", "superseded", "orphan", "refused", "preferred-offer", "created", "registered", "create-failed", "delete-failed", "deleted", "drain-started", "drained", "drain-deadline", "drain-cancelled", "back-off", "throttled", "blocked", "load-balancer", "mass-silence", "mass-absence", "ready", "not-ready", "rollout", "rollout-halted", "unknown-vm", "adopted", "drainer", "leadership", "config", "clock", "security", "credentials", "provider"];

const READ = 1000; // events at a time, of at least twice as many that the store keeps

export function EventRow({ event, withGroup = true }) {
  return html`<div class=${`event ${event.trouble ? "trouble" : ""}`}>
    <time class="muted" datetime=${event.time} title=${dateTime(event.time)}>${when(event.time)}</time>
    <span class=${`tag ${event.trouble ? "tag-warn" : ""}`}>${event.trouble ? "! " : ""}${event.reason}</span>
    ${withGroup && html`<span class="event-where">${event.group ? html`<a href=${link("group", event.shard, event.group)}>${event.group}</a>` : html`<span class="muted">${event.shard}</span>`}</span>`}
    <span class="event-text">${event.message}</span>
    ${event.instance_id && html`<a class="event-instance" href=${link("instance", event.shard, event.instance_id)}><code>…${event.instance_id.slice(-8)}</code><span class="visually-hidden"> instance ${event.instance_id}</span></a>`}
  </div>`;
}

export function Events({ parameters }) {
  const fleet = useStore(100);
  const [filters, setFilters] = useState({ shard: parameters.get("shard") || "", group: parameters.get("group") || "", instance: parameters.get("instance") || "", reason: parameters.get("reason") || "", trouble: parameters.get("trouble") === "true" });
  const [isFollowing, setFollowing] = useState(true);
  const frozen = useRef(null);
  const server = { shard: filters.shard, group: filters.group, instance: filters.instance, reason: filters.reason };
  const key = JSON.stringify(server);
  // Read again before the store forgets what came after the last reading, so that no event is missing in between.
  const past = useAnswer(() => call(`/v1/events${query({ ...server, limit: READ })}`), key, 0, Math.floor((frozen.current || fleet).forgotten / READ));
  useEffect(() => {
    const used = Object.entries({ ...server, trouble: filters.trouble ? "true" : "" }).filter(([, value]) => value);
    history.replaceState(null, "", `#/events${used.length ? `?${new URLSearchParams(used)}` : ""}`);
  }, [key, filters.trouble]);

  const seen = new Set((past.value?.events || []).map((event) => `${event.shard}/${event.id}`));
  const isFiltered = Object.values(filters).some(Boolean);
  const reasons = filters.reason ? filters.reason.split(",") : null;
  const isWanted = (event) =>
    (!filters.shard || event.shard === filters.shard) && (!filters.group || event.group === filters.group) &&
    (!filters.instance || event.instance_id === filters.instance) && (!reasons || reasons.includes(event.reason)) && (!filters.trouble || event.trouble);
  if (isFollowing) frozen.current = null;
  else frozen.current ||= { events: [...fleet.events], forgotten: fleet.forgotten };
  const live = (frozen.current || fleet).events.filter((event) => !seen.has(`${event.shard}/${event.id}`) && isWanted(event));
  const all = [...(past.value?.events || []).filter((event) => !filters.trouble || event.trouble), ...live];
  all.sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : b.id - a.id));
  const set = (name) => (event) => setFilters({ ...filters, [name]: event.currentTarget.type === "checkbox" ? event.currentTarget.checked : event.currentTarget.value.trim() });
  const groups = [...new Set([...fleet.groups.values()].filter((group) => !filters.shard || group.shard === filters.shard).map((group) => group.group))].sort();
  const tenants = [...new Set([...fleet.shards.values()].map((shard) => shard.tenant))].join(", ");
  return html`<div class="page">
    <header class="title"><div><h1>Events</h1><p class="muted">${number(all.length)} shown${tenants && html`, tenant ${tenants}`}</p></div>
      <div class="actions">
        <button type="button" aria-pressed=${isFollowing} onClick=${() => setFollowing(!isFollowing)}>${isFollowing ? "‖ Pause" : "▶ Follow"}</button>
        <a class="button" href=${`/v1/events${query({ ...server, limit: 1000, format: "ndjson" })}`} download>Download</a>
      </div></header>
    <form class="filters" aria-label="Filters" onSubmit=${(event) => event.preventDefault()}>
      <label>Shard <select value=${filters.shard} onChange=${set("shard")}><option value="">all</option>${[...fleet.shards.keys()].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
      <label>Group <select value=${filters.group} onChange=${set("group")}><option value="">all</option>${groups.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
      <label>Reason <select value=${filters.reason} onChange=${set("reason")}><option value="">all</option>${KNOWN.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
      <label class="grow">Instance <input type="text" placeholder="its whole ID" value=${filters.instance} onChange=${set("instance")} spellcheck="false" autocomplete="off" /></label>
      <label class="check"><input type="checkbox" checked=${filters.trouble} onChange=${set("trouble")} /> only what needs attention</label>
    </form>
    ${past.error && html`<${Problem} error=${past.error} again=${past.reload} />`}
    <section class="card flush"><${VirtualRows} rows=${all} height=${46} label="Events" most=${680}
      row=${(event) => html`<div key=${`${event.shard}/${event.id}`} role="listitem" class="row"><${EventRow} event=${event} /></div>`}
      empty=${html`<${Empty} title=${!past.value ? (past.error ? "Not read" : "Reading…") : isFiltered ? "No event matches" : "No events yet"}>${past.value ? `${isFiltered ? "Widen the filters, or wait: new" : "New"} events appear here by themselves.` : ""}<//>`} /></section>
  </div>`;
}
