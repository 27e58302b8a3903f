// Leaders and standbys, and what their work costs.
import { call } from "../api.js";
import { useStore } from "../store.js";
import { Ago, Card, dateTime, duration, Empty, Facts, html, link, number, useAnswer } from "../ui.js";

const WRITES = new Set(["create", "replace", "list"]);
const PRICE = { write: 5 / 1e6, read: 0.4 / 1e6 }; // dollars per request, as in the docs on storage costs

function samples(control, name) {
  return control ? control.metrics.filter((each) => each.name === name) : [];
}
function value(control, name) {
  return samples(control, name).reduce((sum, each) => sum + each.value, 0);
}

export function ControlPlane() {
  const store = useStore(500);
  const answer = useAnswer(() => call("/v1/shards"), "shards", 5);
  const terms = new Map((answer.value?.shards || []).map((shard) => [shard.shard, shard.terms]));
  if (!store.isLoaded) return html`<div class="page"><p class="muted">Connecting to the shards…</p></div>`;
  return html`<div class="page"><header class="title"><div><h1>Control plane</h1><p class="muted">Numbers are of the leader's process, since it started.</p></div></header>
    ${[...store.shards.values()].map((shard) => html`<${Shard} key=${shard.shard} shard=${shard} terms=${terms.get(shard.shard) || []} store=${store} />`)}</div>`;
}

function Shard({ shard, terms, store }) {
  const control = shard.control_plane;
  const config = shard.config;
  const groups = [...store.groups.values()].filter((group) => group.shard === shard.shard);
  const failing = groups.filter((group) => group.last_error || group.blocked.length);
  return html`<section class="shard" aria-label=${`Shard ${shard.shard}`}>
    <header class="shard-head"><h2><span class=${`dot ${shard.reachable ? "good" : "bad"}`} aria-hidden="true"></span>${shard.shard}</h2>
      ${!shard.reachable && html`<p class="bad-text">does not answer: ${shard.error}${shard.read_at ? html`; shown as of <${Ago} time=${shard.read_at} />` : ""}</p>`}</header>
    ${!control ? html`<${Empty} title="No leader has answered yet" />` : html`<div class="cards">
      <${Card} title="Leadership"><${Facts} rows=${[["leader", html`<strong>${control.leader}</strong>`], ["epoch", control.epoch], ["leading for", duration(control.leading_ms)], ["agents connected", number(value(control, "nstance_agents_connected"))]]} />
        <h3>Standbys</h3>${control.standbys.length ? html`<ul class="plain">${control.standbys.map((each) => html`<li key=${each.server}><strong>${each.server}</strong> <span class=${each.answered_ms > 5000 ? "warn-text" : "muted"}>last answer ${duration(each.answered_ms)} ago</span></li>`)}</ul>` : html`<p class="warn-text">None: if the leader fails, nobody takes over.</p>`}
        <h3>History</h3>${terms.length ? html`<ul class="plain">${[...terms].reverse().slice(0, 8).map((term) => html`<li key=${term.epoch}>epoch ${term.epoch} <strong>${term.leader}</strong> <span class="muted">since ${dateTime(term.since)}</span></li>`)}</ul><p class="muted">As seen by this dashboard.</p>` : html`<p class="muted">Reading…</p>`}<//>
      <${Card} title="Object storage"><${Storage} shard=${shard} control=${control} /><//>
      <${Card} title="Provider"><${Provider} control=${control} failing=${failing} groups=${groups} /><//>
      <${Card} title="Process"><${Facts} rows=${[
        ["event loop lag", `${(value(control, "nstance_event_loop_lag_seconds") * 1000).toFixed(0)} ms, worst of a minute`], ["event loop errors", number(value(control, "nstance_event_loop_errors_total"))],
        ["certificates issued", number(value(control, "nstance_certificates_issued_total"))], ["cache drops", number(value(control, "nstance_cache_dropped_total"))],
        ...samples(control, "nstance_certificate_expiry_timestamp_seconds").map((each) => [`${each.labels.kind === "ca" ? "CA" : each.labels.kind} certificate`, each.value ? `expires in ${duration(each.value * 1000 - Date.now())}` : null]),
      ]} />
        <h3>Configuration</h3>${config && html`<${Facts} rows=${[["written", config.last_modified && html`<${Ago} time=${config.last_modified} />`], ["version", html`<code>${config.etag.slice(0, 16)}</code>`], ["size", `${number(config.size)} bytes`]]} />
          ${config.errors.map((text) => html`<div key=${text} class="notice bad"><span class="notice-mark" aria-hidden="true">✕</span><p>${text}</p></div>`)}`}
        ${shard.unknown_vms > 0 && html`<p class="warn-text">${number(shard.unknown_vms)} unknown VMs are held: <code>nstance-admin instance list --unknown</code></p>`}<//>
    </div>`}
  </section>`;
}

function Storage({ shard, control }) {
  const all = samples(control, "nstance_storage_requests_total").filter((each) => each.value);
  const total = all.reduce((sum, each) => sum + each.value, 0);
  const price = all.reduce((sum, each) => sum + each.value * (each.labels.op === "delete" ? 0 : WRITES.has(each.labels.op) ? PRICE.write : PRICE.read), 0);
  const errors = all.filter((each) => !["ok", "not_found", "conflict"].includes(each.labels.code)).reduce((sum, each) => sum + each.value, 0);
  return html`<${Facts} rows=${[["requests", number(total)], ["price, about", `$${price.toFixed(4)}`], ["failed", errors ? html`<span class="bad-text">${number(errors)}</span>` : "0"], ["last failure", control.storage_failed && html`<${Ago} time=${control.storage_failed} />`]]} />
    <${Counts} rows=${all} />`;
}

// Offers that the provider had no capacity for: they are not tried again before their time.
function Exhausted({ groups }) {
  const rows = groups.flatMap((group) => (group.exhausted_offers || []).map((offer) => ({ group, offer })));
  if (!rows.length) return html`<p class="muted">No offer is exhausted.</p>`;
  return html`<ul class="plain">${rows.map(({ group, offer }, index) => html`<li key=${index}><a href=${link("group", group.shard, group.group)}>${group.group}</a> <strong>${[offer.market, offer.instance_type].filter(Boolean).join(" ") || "the offer"}</strong>${offer.subnet ? ` in ${offer.subnet}` : ""} <span class="warn-text">${offer.message || "no capacity"}</span>${offer.retry && html` <span class="muted">again at ${dateTime(offer.retry)}</span>`}</li>`)}</ul>`;
}

function Provider({ control, failing, groups }) {
  const all = samples(control, "nstance_provider_requests_total").filter((each) => each.value);
  return html`<${Facts} rows=${[["rate limit", control.provider_rate ? html`<span class="warn-text">${control.provider_rate.toFixed(2)} calls per second</span>` : "none: the provider does not throttle"]]} />
    <${Counts} rows=${all} />
    <h3>Capacity memory</h3><${Exhausted} groups=${groups} />
    <h3>Groups with errors</h3>${failing.length ? html`<ul class="plain">${failing.map((group) => html`<li key=${group.group}><a href=${link("group", group.shard, group.group)}>${group.group}</a> <span class="bad-text">${group.last_error || group.blocked[0]}</span></li>`)}</ul>` : html`<p class="muted">None.</p>`}`;
}

function Counts({ rows }) {
  if (!rows.length) return html`<p class="muted">No calls yet.</p>`;
  return html`<table class="counts"><thead><tr><th scope="col">call</th><th scope="col">result</th><th scope="col" class="right">count</th></tr></thead>
    <tbody>${rows.map((each) => html`<tr key=${`${each.labels.op}/${each.labels.code}`}><td>${each.labels.op}</td><td class=${["ok", "not_found", "conflict"].includes(each.labels.code) ? "muted" : "bad-text"}>${each.labels.code}</td><td class="right">${number(each.value)}</td></tr>`)}</tbody></table>`;
}
