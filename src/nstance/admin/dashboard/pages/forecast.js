// A scenario of the simulator on a shard's configuration.
import { call } from "../api.js";
import { Chart } from "../chart.js";
import { useStore } from "../store.js";
import { Ago, Card, Empty, html, number, Problem, useAnswer, useMemo, useState } from "../ui.js";

const SCENARIOS = {
  "spot-storm": "The provider takes half of all spot VMs back, with two minutes of warning.",
  "zone-brown-out": "A tenth of the VMs die, and the provider is slow and fails half of the calls.",
  "bad-image": "A new template whose VMs never register. Its rollout halts.",
  "slow-storage": "Object storage takes ten times as long and sometimes fails.",
  "failover-hourly": "The leader is killed every hour.",
  capacity: "A zone runs dry: the provider has no capacity for the preferred offers.",
  "new-template": "All templates change, and every instance is replaced within the limits.",
};

export function Forecast({ session }) {
  const store = useStore(1000);
  const shards = [...store.shards.keys()];
  const [form, setForm] = useState({ shard: "", scenario: "spot-storm", hours: "2", agents: "", all_spot: true });
  const [chosen, setChosen] = useState(null);
  const [error, setError] = useState(null);
  const list = useAnswer(() => call("/v1/forecasts"), "forecasts", 2);
  const id = chosen || list.value?.forecasts[0]?.id;
  const isRunning = list.value?.forecasts.some((each) => each.state === "running");
  const state = list.value?.forecasts.find((each) => each.id === id)?.state;
  const shown = useAnswer(() => (id ? call(`/v1/forecasts/${id}`) : Promise.resolve(null)), id, 0, state);
  if (!session.has_storage) {
    return html`<div class="page"><header class="title"><div><h1>Forecast</h1></div></header><${Empty} title="A forecast needs the configuration from the bucket">
      Start <code>nstance-admin serve</code> with <code>--storage-bucket</code>. Only reading is needed.<//></div>`;
  }
  const set = (name) => (event) => setForm({ ...form, [name]: event.currentTarget.type === "checkbox" ? event.currentTarget.checked : event.currentTarget.value });
  async function start(event) {
    event.preventDefault();
    setError(null);
    try {
      const body = { shard: form.shard || shards[0], scenario: form.scenario, hours: Number(form.hours), all_spot: form.all_spot && form.scenario === "spot-storm" };
      if (form.agents) body.agents = Number(form.agents);
      const begun = await call("/v1/forecasts", { method: "POST", body });
      setChosen(begun.id);
      list.reload();
    } catch (problem) {
      setError(problem);
    }
  }
  async function cancel() {
    await call(`/v1/forecasts/${id}`, { method: "DELETE" }).catch(setError);
    list.reload();
  }
  return html`<div class="page"><header class="title"><div><h1>Forecast</h1><p class="muted">What would happen to the groups of a shard. Nothing of yours is called or changed.</p></div></header>
    <div class="columns">
      <div class="column"><${Card} title="Play a scenario"><form class="stack" onSubmit=${start}>
        <label class="field"><span>Shard</span><select value=${form.shard || shards[0]} onChange=${set("shard")}>${shards.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
        <label class="field"><span>Scenario</span><select value=${form.scenario} onChange=${set("scenario")}>${Object.keys(SCENARIOS).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
        <p class="muted">${SCENARIOS[form.scenario]}</p>
        ${form.scenario === "spot-storm" && html`<label class="check"><input type="checkbox" checked=${form.all_spot} onChange=${set("all_spot")} /> as if every VM were a spot VM</label>`}
        <label class="field"><span>Hours of virtual time</span><input type="number" min="0.05" max="48" step="any" value=${form.hours} onInput=${set("hours")} required /></label>
        <label class="field"><span>Instances in total</span><input type="number" min="1" max="20000" placeholder="as many as desired now" value=${form.agents} onInput=${set("agents")} /></label>
        ${error && html`<${Problem} error=${error} />`}
        <button type="submit" class="primary" disabled=${isRunning}>${isRunning ? "Running…" : "Run"}</button></form><//>
        ${list.value?.forecasts.length > 0 && html`<${Card} title="Latest"><ul class="plain">${list.value.forecasts.map((each) => html`<li key=${each.id}><button type="button" class="linkish" aria-pressed=${each.id === id} onClick=${() => setChosen(each.id)}>${each.scenario}</button> <span class="muted">${each.shard}, ${each.state}, <${Ago} time=${each.started} /></span></li>`)}</ul><//>`}
      </div>
      <div class="column-wide"><${Result} forecast=${shown.value} cancel=${cancel} /></div>
    </div></div>`;
}

function Result({ forecast, cancel }) {
  const data = useMemo(() => {
    const points = forecast?.points || [];
    const pick = (name) => points.map((point) => point[name]);
    return {
      x: pick("hour"),
      series: [
        { label: "desired", tone: "muted", values: pick("desired"), dash: [6, 4] },
        { label: "ready", tone: "good", values: pick("ready"), fill: true },
        { label: "starting", tone: "info", values: pick("starting") },
        { label: "leaving", tone: "leave", values: pick("leaving") },
      ],
    };
  }, [forecast]);
  if (!forecast) return html`<${Card}><${Empty} title="No forecast yet">Choose a scenario and run it. It takes from seconds to minutes.<//><//>`;
  const title = `${forecast.scenario} in ${forecast.shard}`;
  if (forecast.state === "running") {
    return html`<${Card} title=${title} aside=${html`<button type="button" onClick=${cancel}>Cancel</button>`}><p class="muted" aria-live="polite">Running for <${Ago} time=${forecast.started} />, in the background.</p><div class="progress unknown"><div class="progress-fill"></div></div><//>`;
  }
  if (forecast.state !== "done") return html`<${Card} title=${title}><${Problem} error=${{ title: `It ${forecast.state === "cancelled" ? "was cancelled" : "failed"}`, message: forecast.error }} /><//>`;
  return html`<${Card} title=${title} aside=${html`<span class="muted">${number(forecast.points[0].desired)} instances, ${forecast.hours} h</span>`}>
    <${Chart} ...${data} isTime=${false} height=${320} marks=${forecast.marks} label=${forecast.summary.join(" ")} />
    ${forecast.marks.length > 0 && html`<ul class="plain">${forecast.marks.map((mark, index) => html`<li key=${index}><strong>hour ${mark.hour.toFixed(2)}</strong> ${mark.text}</li>`)}</ul>`}
    <ul class="summary">${forecast.summary.map((line) => html`<li key=${line}>${line}</li>`)}</ul><//>`;
}
