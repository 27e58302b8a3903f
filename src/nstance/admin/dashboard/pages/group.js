// One group: sizes over time, rollout, plan, instances, configuration.
import { ActionButton, Plan } from "../actions.js";
import { call, query } from "../api.js";
import { Chart } from "../chart.js";
import { Mark } from "../grid.js";
import { counts, ORDER, shortHash, STATES, stateOf } from "../states.js";
import { useStore } from "../store.js";
import { Ago, amount, Card, dateTime, duration, Empty, Facts, html, link, number, Problem, Stale, useAnswer, useMemo, useNow, VirtualRows } from "../ui.js";
import { EventRow } from "./events.js";
import { Costs, Progress, revisionsOf } from "./fleet.js";

const LIFE = new Set(["registered", "ready", "not-ready", "created", "deleted", "drained", "drain-started"]);

export function Group({ session, shard, name }) {
  const store = useStore(100);
  const group = store.groups.get(`${shard}/${name}`);
  if (!store.isLoaded) return html`<div class="page"><p class="muted">Connecting to the shards…</p></div>`;
  const isUnread = store.shards.has(shard) && !store.shards.get(shard).read_at; // that is no absence
  if (!group) return html`<div class="page"><${Stale} shard=${store.shards.get(shard)} /><${Empty} title=${isUnread ? `Nothing is known of the shard ${shard} yet` : `There is no group ${name} in ${shard}`}><a href="#/fleet">Back to the fleet</a><//></div>`;
  return html`<${Known} session=${session} group=${group} store=${store} />`;
}

function Known({ session, group, store }) {
  const { shard, group: name } = group;
  const path = `/v1/groups/${encodeURIComponent(name)}`;
  const where = query({ shard });
  const size = `${group.etag}/${group.actual_size}/${group.ready_size}`;
  const sizes = useAnswer(() => call(`${path}/sizes${where}`), `sizes ${shard}/${name}`, 15, size);
  const plan = useAnswer(() => call(`${path}/plan${where}`), `plan ${shard}/${name}`, 10, size);
  const history = useAnswer(() => call(`${path}/history${where}`), `history ${shard}/${name}`, 30, group.rollout?.outcome);
  const events = useAnswer(() => call(`/v1/events${query({ shard, group: name, limit: 500 })}`), `events ${shard}/${name}`, 15, size);
  const members = store.byGroup.get(`${shard}/${name}`) || new Map();
  const found = counts(members.values(), revisionsOf(group));
  return html`<div class="page">
    <header class="title">
      <div><p class="crumbs"><a href="#/fleet">Fleet</a> / ${shard}</p><h1>${name}</h1></div>
      <div class="actions"><${GroupActions} group=${group} session=${session} /></div>
    </header>
    <${Stale} shard=${store.shards.get(shard)} />
    <${Blocks} group=${group} />
    <section class="totals" aria-label="Sizes">
      <div class="total"><span class="total-value">${number(group.size)}</span><span class="total-label">desired</span></div>
      <div class=${`total ${group.ready_size < group.size ? "warn" : "good"}`}><span class="total-value">${number(group.ready_size)}</span><span class="total-label">ready</span></div>
      ${ORDER.filter((state) => state !== "ready" && found[state]).map((state) => html`<div key=${state} class=${`total ${STATES[state].tone}`}><span class="total-value">${number(found[state])}</span><span class="total-label">${STATES[state].word}</span></div>`)}
      <${Costs} groups=${[group]} />
    </section>
    <div class="columns">
      <div class="column-wide">
        <${Card} title="Size over time" aside=${html`<span class="muted">since this dashboard runs</span>`}><${Sizes} answer=${sizes} group=${group} /><//>
        <${Card} title="Instances" aside=${html`<span class="muted">${number(members.size)}</span>`}><${Instances} group=${group} members=${members} /><//>
        <${Card} title="Latest events" aside=${html`<a href=${`#/events?group=${name}&shard=${shard}`}>All</a>`}>
          <${Latest} answer=${events} /><//>
      </div>
      <div class="column">
        ${group.rollout && html`<${Card} title="Rollout"><${Rollout} rollout=${group.rollout} size=${group.size} history=${history} /><//>`}
        <${Card} title="What comes next">${plan.error ? html`<${Problem} error=${plan.error} />` : plan.value ? html`<${Plan} plan=${plan.value} empty="Nothing to do" about="The group is as desired." />` : html`<p class="muted">Asking the server…</p>`}<//>
        <${Card} title="Why instances changed"><${Reasons} answer=${events} /><//>
        <${Card} title="Configuration"><${Configuration} group=${group} /><//>
      </div>
    </div>
  </div>`;
}

function GroupActions({ group, session }) {
  const path = `/v1/groups/${encodeURIComponent(group.group)}`;
  const base = { shard: group.shard, group: path };
  const isHeld = group.rollout && ["paused", "halted"].includes(group.rollout.outcome);
  const actions = [
    { ...base, verb: "Scale", title: `Scale ${group.group}`, path: `${path}/scale`,
      ask: { label: "Number of instances", value: String(group.size), body: (value) => ({ size: value.trim() === "" ? null : Number(value) }) } },
    group.paused
      ? { ...base, verb: "Resume", title: `Resume ${group.group}`, path: `${path}/resume` }
      : { ...base, verb: "Pause", title: `Pause ${group.group}`, path: `${path}/pause`, about: "No instance is created, replaced or deleted until the group is resumed." },
    isHeld && { ...base, verb: "Resume rollout", title: `Resume the rollout of ${group.group}`, path: `${path}/resume-rollout` },
    group.rollout && { ...base, verb: "Roll back", title: `Roll ${group.group} back`, path: `${path}/rollback`, about: "To the last revision that was fully rolled out." },
    !group.static && { ...base, verb: "Delete", tone: "bad", title: `Delete ${group.group}`, path, method: "DELETE", about: "The group and all its instances are drained and deleted." },
  ].filter(Boolean);
  return actions.map((action) => html`<${ActionButton} key=${action.verb} action=${action} session=${session} />`);
}

function Blocks({ group }) {
  const reasons = [...group.blocked.map((text) => `Blocked: ${text}`)];
  if (group.last_error && !group.blocked.includes(group.last_error)) reasons.push(group.last_error);
  if (group.paused) reasons.push("Paused: no instance is created, replaced or deleted until the group is resumed.");
  if (!reasons.length) return null;
  return html`<ul class="alarms">${reasons.map((text) => html`<li key=${text} class=${`notice ${text.startsWith("Paused") ? "warn" : "bad"}`}><span class="notice-mark" aria-hidden="true">!</span><p>${text}</p></li>`)}</ul>`;
}

function Sizes({ answer, group }) {
  const rows = answer.value?.groups[0]?.sizes || [];
  const data = useMemo(() => {
    const now = Date.now() / 1000;
    const all = rows.length ? [...rows, { ...rows[rows.length - 1], time: null }] : [];
    const x = all.map((row) => (row.time ? new Date(row.time) / 1000 : now));
    const series = [
      { label: "desired", tone: "muted", values: all.map((row) => row.size), dash: [6, 4] },
      { label: "exist", tone: "info", values: all.map((row) => row.actual) },
      { label: "ready", tone: "good", values: all.map((row) => row.ready), fill: true },
    ];
    return { x, series };
  }, [answer.value]);
  if (answer.error) return html`<${Problem} error=${answer.error} />`;
  if (!rows.length) return html`<p class="muted">Reading…</p>`;
  return html`<${Chart} ...${data} stepped=${true} label=${`Sizes of ${group.group}: now ${group.ready_size} of ${group.size} ready`} />`;
}

function Instances({ group, members }) {
  const now = useNow();
  const revision = shortHash(group.infra_hash);
  const rank = new Map(ORDER.map((state, index) => [state, state === "ready" ? 99 : index]));
  const rows = [...members.values()].map((each) => ({ each, state: stateOf(each, revision) }));
  rows.sort((a, b) => rank.get(a.state) - rank.get(b.state) || (a.each.id < b.each.id ? -1 : 1));
  return html`<${VirtualRows} rows=${rows} height=${44} label="Instances" most=${440}
    empty=${html`<${Empty} title="No instances">${group.size ? "They are being created." : "The desired size is 0."}<//>`}
    row=${({ each, state }) => html`<a key=${each.id} role="listitem" class="row row-instance" href=${link("instance", each.shard, each.id)}>
      <${Mark} state=${state} /><span class="row-state">${STATES[state].word}</span>
      <code>${each.id}</code><span class="row-note muted">${each.not_ready || each.reason || (each.hostname === each.id ? each.ipv4 : each.hostname) || ""}</span>
      <span class="muted row-age">${duration(now - each.created)}</span></a>`} />`;
}

function Latest({ answer }) {
  if (answer.error && !answer.value) return html`<${Problem} error=${answer.error} />`;
  const events = (answer.value?.events || []).slice(-12).reverse();
  if (!events.length) return html`<${Empty} title=${answer.value ? "No events yet" : "Reading…"} />`;
  return html`<ul class="event-list">${events.map((event) => html`<li key=${event.id}><${EventRow} event=${event} withGroup=${false} /></li>`)}</ul>`;
}

function Rollout({ rollout, size, history }) {
  const revisions = history.value?.groups[0]?.revisions || [];
  return html`<p class="line"><span class=${`tag ${rollout.outcome === "halted" ? "tag-bad" : rollout.outcome === "complete" ? "tag-good" : "tag-info"}`}>${rollout.outcome}</span>
      <code>${rollout.revision}</code> <span class="muted">by ${rollout.by || "unknown"}</span></p>
    ${rollout.outcome !== "complete" && html`<${Progress} rollout=${rollout} size=${size} />`}
    ${rollout.message && html`<p>${rollout.message}</p>`}
    ${revisions.length > 1 && html`<h3>History</h3><ul class="plain">${revisions.slice(0, 8).map((each) => html`<li key=${each.revision + each.started}><code>${each.revision}</code> ${each.outcome} <span class="muted"><${Ago} time=${each.started} /></span></li>`)}</ul>`}`;
}

function Reasons({ answer }) {
  const found = new Map();
  for (const event of answer.value?.events || []) {
    if (!LIFE.has(event.reason)) found.set(event.reason, (found.get(event.reason) || 0) + 1);
  }
  const rows = [...found].sort((a, b) => b[1] - a[1]).slice(0, 8);
  if (!rows.length) return html`<p class="muted">${answer.value ? "Nothing was replaced lately." : answer.error ? "Not read." : "Reading…"}</p>`;
  const most = rows[0][1];
  return html`<ul class="bars">${rows.map(([reason, count]) => html`<li key=${reason}><span>${reason}</span><span class="bar"><span style=${{ width: `${(count / most) * 100}%` }}></span></span><span>${number(count)}</span></li>`)}</ul>`;
}

function Configuration({ group }) {
  const source = group.size_source;
  const from = source.kind ? `${source.kind}${source.by ? ` by ${source.by}` : ""}${source.at ? ` at ${dateTime(source.at)}` : ""}` : null;
  return html`<${Facts} rows=${[
      ["tenant", group.tenant], ["template", group.template], ["instance type", group.instance_type], ["subnet pool", group.subnet_pool],
      ["kind", group.static ? "static, from the config file" : "dynamic, from the API"], ["size from", from],
      ["size in the file", source.config_size], ["one more instance", group.cost?.instance_hourly != null && `${amount(group.cost.instance_hourly, group.cost.currency)} per hour`], ["infra hash", group.infra_hash && html`<code>${shortHash(group.infra_hash)}</code>`],
      ["runtime hash", group.runtime_hash && html`<code>${shortHash(group.runtime_hash)}</code>`],
    ]} />
    ${Object.keys(group.vars).length > 0 && html`<h3>Vars</h3><${Facts} rows=${Object.entries(group.vars)} />`}
    ${group.overrides.length > 0 && html`<h3>Set through the API</h3><ul class="plain">${group.overrides.map((each) => html`<li key=${each.field}><code>${each.field}</code> = ${each.value} <span class="muted">${each.file_value !== null ? `(file: ${each.file_value})` : ""} by ${each.by || "unknown"}</span></li>`)}</ul>`}`;
}
