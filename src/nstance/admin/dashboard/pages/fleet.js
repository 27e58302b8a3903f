// Every instance a cell, grouped by shard and group; who leads; what needs attention.
import { Grid, Legend } from "../grid.js";
import { counts, ORDER, shortHash, STATES } from "../states.js";
import { useStore } from "../store.js";
import { Ago, amount, duration, Empty, html, link, number, totalCost } from "../ui.js";

export function Fleet() {
  const store = useStore(100);
  if (!store.isLoaded) return html`<div class="page"><p class="muted" aria-live="polite">Connecting to the shards…</p></div>`;
  const groups = [...store.groups.values()];
  const total = (name) => groups.reduce((sum, group) => sum + group[name], 0);
  const found = counts(store.instances.values());
  const starting = (found.starting || 0) + (found.pending || 0);
  const leaving = (found.draining || 0) + (found.deleting || 0);
  const present = new Set();
  for (const [key, members] of store.byGroup) {
    const group = store.groups.get(key);
    for (const state of Object.keys(counts(members.values(), revisionsOf(group)))) present.add(state);
  }
  return html`<div class="page">
    <h1 class="visually-hidden">Fleet</h1>
    <section class="totals" aria-label="Sizes">
      <${Total} value=${total("size")} label="desired" />
      <${Total} value=${total("ready_size")} label="ready" tone=${total("ready_size") < total("size") ? "warn" : "good"} />
      <${Total} value=${starting} label="starting" tone=${starting ? "info" : ""} />
      <${Total} value=${leaving} label="draining or deleting" tone=${leaving ? "leave" : ""} />
      <${Total} value=${found["not-ready"] || 0} label="not ready" tone=${found["not-ready"] ? "warn" : ""} />
      <${Total} value=${found.suspect || 0} label="unresponsive" tone=${found.suspect ? "bad" : ""} />
      <${Costs} groups=${groups} />
    </section>
    <${Alarms} alarms=${store.alarms} />
    ${[...store.shards.values()].map((shard) => html`<${Shard} key=${shard.shard} shard=${shard} store=${store} />`)}
    ${present.size > 0 && html`<${Legend} states=${ORDER.filter((state) => present.has(state))} />`}
  </div>`;
}

export function revisionsOf(group) {
  return group ? new Map([[group.group, shortHash(group.infra_hash)]]) : null;
}

function Total({ value, label, tone }) {
  return html`<div class=${`total ${tone || ""}`}><span class="total-value">${number(value)}</span><span class="total-label">${label}</span></div>`;
}

export function Costs({ groups }) {
  return totalCost(groups).map((each) => html`<div key=${each.currency} class="total"><span class="total-value">${amount(each.hourly, "")}</span>
    <span class="total-label">${each.currency} per hour${each.unpriced ? html`, without <span class="warn-text">${number(each.unpriced)} without a price</span>` : ""}</span></div>`);
}

export function Alarms({ alarms }) {
  if (!alarms.length) return html`<p class="calm"><span aria-hidden="true">✓</span> Nothing needs attention</p>`;
  return html`<ul class="alarms" aria-label="Alarms">${alarms.map((alarm, index) => html`<li key=${index} class=${`notice ${alarm.level === "bad" ? "bad" : "warn"}`}>
    <span class="notice-mark" aria-hidden="true">${alarm.level === "bad" ? "✕" : "!"}</span>
    <p><span class="visually-hidden">${alarm.level === "bad" ? "Problem" : "Warning"}: </span>
      <strong>${alarm.group ? html`<a href=${link("group", alarm.shard, alarm.group)}>${alarm.group}</a> ` : ""}${alarm.shard}</strong> ${alarm.message}</p>
  </li>`)}</ul>`;
}

function Shard({ shard, store }) {
  const groups = [...store.groups.values()].filter((group) => group.shard === shard.shard);
  const names = new Set(groups.map((group) => group.group));
  const orphaned = [...store.byGroup.keys()].filter((key) => key.startsWith(`${shard.shard}/`) && !names.has(key.slice(shard.shard.length + 1)));
  const control = shard.control_plane;
  return html`<section class="shard" aria-label=${`Shard ${shard.shard}`}>
    <header class="shard-head">
      <h2><span class=${`dot ${shard.reachable ? "good" : "bad"}`} aria-hidden="true"></span>${shard.shard}</h2>
      ${shard.reachable
        ? control && html`<p class="shard-leader"><span>leader <strong>${control.leader}</strong></span><span class="muted">epoch ${control.epoch}, for ${duration(control.leading_ms)}</span>
            ${control.standbys.length
              ? control.standbys.map((each) => html`<span key=${each.server} class=${each.answered_ms > 5000 ? "warn-text" : "muted"}>standby ${each.server}, answered ${duration(each.answered_ms)} ago</span>`)
              : html`<span class="muted">no standby</span>`}</p>`
        : html`<p class="bad-text">does not answer${shard.read_at ? html`; shown as of <${Ago} time=${shard.read_at} />` : ""}</p>`}
    </header>
    ${!groups.length && !orphaned.length
      ? !shard.reachable && !shard.read_at ? html`<${Empty} title="Nothing is known of this shard yet">Its groups appear when it answers.<//>` : html`<${Empty} title="No groups yet">Create one with <code>nstance-admin group create web --template web --size 3</code>.<//>`
      : html`<div class="groups">${groups.map((group) => html`<${GroupTile} key=${group.group} group=${group} members=${store.byGroup.get(`${shard.shard}/${group.group}`)} />`)}
          ${orphaned.map((key) => html`<${LeftOver} key=${key} shard=${shard.shard} name=${key.slice(shard.shard.length + 1)} members=${store.byGroup.get(key)} />`)}</div>`}
  </section>`;
}

function GroupTile({ group, members }) {
  const all = members || new Map();
  const found = counts(all.values(), revisionsOf(group));
  const rollout = group.rollout && ["rolling", "paused", "halted"].includes(group.rollout.outcome) && (group.rollout.outdated || group.rollout.outcome !== "rolling") ? group.rollout : null;
  const isWhole = group.ready_size >= group.size && (rollout || group.actual_size === group.size); // a rollout has more for a while
  return html`<article class=${`tile${group.size > 200 ? " tile-wide" : ""}`}>
    <header>
      <h3><a href=${link("group", group.shard, group.group)}>${group.group}</a></h3>
      ${group.paused && html`<span class="tag tag-warn">paused</span>`}
      ${(group.blocked.length > 0 || group.last_error) && html`<span class="tag tag-bad">blocked</span>`}
      ${rollout && html`<span class=${`tag ${rollout.outcome === "halted" ? "tag-bad" : "tag-info"}`}>rollout ${rollout.outcome}</span>`}
      <span class=${`tile-size ${isWhole ? "" : "warn-text"}`}><strong>${number(group.ready_size)}</strong>/${number(group.size)}<span class="visually-hidden"> ready</span></span>
    </header>
    ${all.size ? html`<${Grid} shard=${group.shard} label=${group.group} members=${all} revision=${shortHash(group.infra_hash)} />` : html`<p class="muted tile-empty">${group.size ? "no instances yet" : "size 0"}</p>`}
    ${rollout && html`<${Progress} rollout=${rollout} size=${group.size} />`}
    ${Object.keys(found).some((state) => state !== "ready") && html`<p class="tile-notes">${ORDER.filter((state) => state !== "ready" && found[state]).map((state) => `${number(found[state])} ${STATES[state].word}`).join(", ")}</p>`}
  </article>`;
}

// Of the group's size: what exists above it during the rollout goes again.
export function Progress({ rollout, size }) {
  const total = Math.max(rollout.ready, Math.min(rollout.updated + rollout.outdated, size));
  const part = total ? rollout.ready / total : 1;
  return html`<div class="progress" role="progressbar" aria-valuemin="0" aria-valuemax=${total} aria-valuenow=${rollout.ready} aria-label="Rollout">
    <div class="progress-fill" style=${{ width: `${part * 100}%` }}></div><span>${number(rollout.ready)} of ${number(total)} updated</span></div>`;
}

function LeftOver({ shard, name, members }) {
  return html`<article class="tile"><header><h3>${name}</h3><span class="tag tag-warn">deleted group</span></header>
    <${Grid} shard=${shard} label=${name} members=${members} /></article>`;
}
