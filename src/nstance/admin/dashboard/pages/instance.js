// One instance: its life as a timeline, its agent, its files and certificates, its console output.
import { ActionButton } from "../actions.js";
import { call, query } from "../api.js";
import { Mark } from "../grid.js";
import { shortHash, STATES, stateOf } from "../states.js";
import { useStore } from "../store.js";
import { Ago, Card, dateTime, duration, Empty, Facts, html, link, Meter, Problem, Stale, useAnswer, useNow, when } from "../ui.js";

const CONSOLE = "last console output:\n";

const EXPIRES_SOON_MS = 3600000; // a certificate is renewed when a third of its life is left

export function Instance({ session, shard, id }) {
  const store = useStore(100);
  const live = store.instances.get(id);
  const version = live ? `${live.state}/${live.ready}/${live.suspect}/${live.reason}` : "gone";
  const shown = useAnswer(() => call(`/v1/instances/${id}${query({ shard })}`), id, 5, version);
  const events = useAnswer(() => call(`/v1/events${query({ shard, instance: id, limit: 500 })}`), `events ${id}`, 5, version);
  const status = shown.value?.instances[0];
  if (!status) return html`<div class="page"><${Stale} shard=${store.shards.get(shard)} /><${Unknown} shard=${shard} id=${id} live=${live} shown=${shown} events=${events.value?.events || []} /></div>`;
  const group = store.groups.get(`${shard}/${status.group}`);
  const state = stateOf(status, group && shortHash(group.infra_hash));
  const output = (events.value?.events || []).filter((event) => event.message.startsWith(CONSOLE));
  return html`<div class="page">
    <header class="title">
      <div><p class="crumbs"><a href="#/fleet">Fleet</a> / ${shard} / <a href=${link("group", shard, status.group)}>${status.group}</a></p>
        <h1 class="id">${status.instance_id}</h1>
        <p class="state-line"><${Mark} state=${state} size=${14} /> <strong>${STATES[state].word}</strong>
          ${status.not_ready && html`<span>${status.not_ready}</span>`}${status.reason && html`<span>${status.reason}</span>`}
          ${status.on_demand && html`<span class="tag">on-demand</span>`}${status.cloned && html`<span class="tag tag-bad">two agents use its identity</span>`}</p></div>
      <div class="actions"><${InstanceActions} status=${status} session=${session} shard=${shard} /></div>
    </header>
    <${Stale} shard=${store.shards.get(shard)} />
    ${status.message && html`<div class="notice warn"><span class="notice-mark" aria-hidden="true">!</span><p>${status.message}</p></div>`}
    <div class="columns">
      <div class="column-wide">
        <${Card} title="Life">${events.error && !events.value ? html`<${Problem} error=${events.error} />` : html`<${Timeline} events=${(events.value?.events || []).filter((each) => !each.message.startsWith(CONSOLE))} status=${status} />`}<//>
        ${output.length > 0 && html`<${Card} title="Console output"><pre class="console" tabindex="0">${output[output.length - 1].message.slice(CONSOLE.length)}</pre><//>`}
      </div>
      <div class="column">
        <${Card} title="Agent"><${Agent} status=${status} /><//>
        ${status.checks.length > 0 && html`<${Card} title="Checks"><ul class="plain">${status.checks.map((check) => html`<li key=${check.name}><span class=${check.passing ? "good-text" : "bad-text"}>${check.passing ? "✓ passing" : "✕ failing"}</span> ${check.name} <span class="muted">${check.message || ""}</span></li>`)}</ul><//>`}
        <${Card} title="Files and certificates"><${Files} status=${status} /><//>
        <${Card} title="VM"><${Facts} rows=${[
          ["provider ID", status.provider_id && html`<code>${status.provider_id}</code>`], ["VM", status.vm_status], ["type", status.instance_type], ["subnet", status.subnet],
          ["IPv4", status.ipv4], ["IPv6", status.ipv6], ["hostname", status.hostname], ["revision", status.revision && html`<code>${shortHash(status.revision)}</code>`],
          ["replaces", status.replaces && html`<a href=${link("instance", shard, status.replaces)}><code>${status.replaces}</code></a>`],
          ["drain deadline", status.drain_deadline && dateTime(status.drain_deadline)],
        ]} /><//>
      </div>
    </div>
  </div>`;
}

function Unknown({ shard, id, live, shown, events }) {
  const heading = html`<header class="title"><div><p class="crumbs"><a href="#/fleet">Fleet</a> / ${shard}${live && html` / <a href=${link("group", shard, live.group)}>${live.group}</a>`}</p><h1 class="id">${id}</h1>
    ${live && html`<p class="state-line"><${Mark} state=${stateOf(live)} size=${14} /> <strong>${STATES[stateOf(live)].word}</strong></p>`}</div></header>`;
  if (!shown.error) return html`${heading}<p class="muted">Reading…</p>`;
  return html`${heading}${shown.error.status === 404
      ? html`<${Empty} title=${`There is no instance ${id} in ${shard}`}><a href="#/fleet">Back to the fleet</a><//>`
      : html`<${Problem} error=${shown.error} again=${shown.reload} />`}
    ${events.length > 0 && html`<${Card} title="What is left of its history"><${Timeline} events=${events} /><//>`}`;
}

function InstanceActions({ status, session, shard }) {
  const path = `/v1/instances/${status.instance_id}`;
  const isLeaving = ["draining", "deleting", "deleted", "failed"].includes(status.state);
  const actions = [
    !isLeaving && !status.on_demand && { verb: "Replace", title: "Replace this instance", path: `${path}/replace`, about: "A replacement is created first. Then this instance is drained and deleted." },
    status.state === "draining" && { verb: "End drain", title: "End the drain now", path: `${path}/drained`, about: "Workloads that have not left yet are stopped with the VM." },
    !isLeaving && { verb: "Drain and delete", tone: "bad", title: "Drain and delete this instance", path, method: "DELETE" },
  ].filter(Boolean);
  return actions.map((action) => html`<${ActionButton} key=${action.verb} action=${{ ...action, shard }} session=${session} />`);
}

function Timeline({ events, status }) {
  const now = useNow();
  if (!events.length) return html`<${Empty} title="No events are kept of this instance" />`;
  const end = status && !["deleted", "failed"].includes(status.state) ? now - new Date(events[events.length - 1].time) : null;
  return html`<ol class="timeline">${events.map((event, index) => {
    const before = index ? new Date(event.time) - new Date(events[index - 1].time) : null;
    return html`<li key=${event.id} class=${event.trouble ? "trouble" : ""}>
      <span class="timeline-gap">${before !== null ? `+${duration(before)}` : ""}</span>
      <span class="timeline-mark" aria-hidden="true"></span>
      <div><div class="timeline-head"><strong>${event.reason}</strong>${event.trouble && html`<span class="tag tag-warn">attention</span>`}<time class="muted" datetime=${event.time} title=${dateTime(event.time)}>${when(event.time)}</time></div>
      <p>${event.message}</p></div></li>`;
  })}${end !== null && html`<li class="now"><span class="timeline-gap">+${duration(end)}</span><span class="timeline-mark" aria-hidden="true"></span><div class="muted">now</div></li>`}</ol>`;
}

function Agent({ status }) {
  const report = status.report;
  return html`<${Facts} rows=${[
      ["connected", status.connected ? "yes" : "no"], ["last report", html`<${Ago} time=${status.last_report} />`],
      ["version", report?.version], ["up for", report && report.uptime_seconds > 0 && duration(report.uptime_seconds * 1000)],
    ]} />
    ${report && html`<div class="meters"><${Meter} label="CPU" value=${report.cpu_percent} /><${Meter} label="Memory" value=${report.memory_percent} /><${Meter} label="Disk" value=${report.disk_percent} /><p class="muted">load ${report.load1.toFixed(2)}</p></div>`}`;
}

function Files({ status }) {
  const report = status.report;
  if (!report) return html`<p class="muted">Known while its agent is connected.</p>`;
  const now = Date.now();
  return html`${report.files_error && html`<div class="notice bad"><span class="notice-mark" aria-hidden="true">✕</span><p>${report.files_error}</p></div>`}
    <p class=${report.files_hash === report.wanted_files_hash ? "muted" : "warn-text"}>${report.files_hash === report.wanted_files_hash ? "The current file set is installed." : "The current file set is not installed yet."}</p>
    ${report.files.length > 0 && html`<ul class="plain">${report.files.map((file) => html`<li key=${file.name}><code>${file.name}</code> ${file.expires
      ? html`<span class=${new Date(file.expires) - now < EXPIRES_SOON_MS ? "bad-text" : "muted"}>certificate, expires in ${duration(new Date(file.expires) - now)}</span>`
      : html`<span class="muted">${file.sha256.slice(0, 12)}</span>`}</li>`)}</ul>`}`;
}
