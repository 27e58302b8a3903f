// Changes: the plan of the server first, then the question, then the change.
import { call, query } from "./api.js";
import { amount, Empty, html, number, duration, Problem, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

// `action`: { title, verb, tone, path, method, body, shard, group, ask } where `ask` is a field to fill in before the plan.
// With the path of a `group` the change is made only if nobody else changed the group since the plan.
export function ActionButton({ action, session, disabled }) {
  const [isOpen, setOpen] = useState(false);
  const opener = useRef(null);
  const wasOpen = useRef(false);
  const close = () => setOpen(false);
  useLayoutEffect(() => {
    if (wasOpen.current && !isOpen) opener.current?.focus(); // only now: an open dialog keeps the focus, and before the next frame
    wasOpen.current = isOpen;
  }, [isOpen]);
  return html`<button type="button" ref=${opener} class=${action.tone === "bad" ? "danger" : ""} disabled=${disabled}
      onClick=${() => setOpen(true)}>${action.verb}…</button>
    ${isOpen && html`<${PlanDialog} action=${action} session=${session} onClose=${close} />`}`;
}

function PlanDialog({ action, session, onClose }) {
  const dialog = useRef(null);
  const [value, setValue] = useState(action.ask ? action.ask.value : null);
  const [planned, setPlanned] = useState(null); // the plan, what was asked for, and the group's etag then: only this is done
  const [error, setError] = useState(null);
  const asked = useRef(0); // the plans that were asked for: an answer to an earlier one is dropped
  const [phase, setPhase] = useState("planning"); // planning, asking, doing

  async function send(body, { isDryRun = false, etag } = {}) {
    const path = `${action.path}${query({ shard: action.shard, dry_run: isDryRun ? "true" : "" })}`;
    return call(path, { method: action.method || "POST", body, headers: etag ? { "If-Match": `"${etag}"` } : {} });
  }
  async function loadPlan() {
    const number = (asked.current += 1);
    setPhase("planning");
    setError(null);
    setPlanned(null);
    try {
      const body = action.ask ? action.ask.body(value) : action.body;
      // Read before the plan, so that any change after it is noticed. What the page shows may be a moment older.
      const found = action.group && (await call(`${action.group}${query({ shard: action.shard })}`)).groups[0];
      const etag = found ? found.etag : undefined;
      const plan = await send(body, { isDryRun: true });
      if (number !== asked.current) return;
      setPlanned({ plan, body, etag });
    } catch (problem) {
      if (number !== asked.current) return;
      setError(problem);
    }
    setPhase("asking");
  }
  async function carryOut() {
    setPhase("doing");
    setError(null);
    try {
      await send(planned.body, planned);
      onClose();
    } catch (problem) {
      setError(problem);
      setPlanned(null); // whatever happened meanwhile: the next attempt begins with a new plan
      setPhase("asking");
    }
  }
  // The plan that is shown is not that of the new text.
  function change(event) {
    asked.current += 1;
    setValue(event.currentTarget.value);
    setPlanned(null);
    setError(null);
    setPhase("asking");
  }
  useEffect(() => {
    dialog.current.showModal();
    loadPlan();
  }, []);

  const mayChange = session.can_change;
  return html`<dialog ref=${dialog} class="dialog" aria-labelledby="plan-title" onClose=${onClose} onCancel=${onClose}>
    <header><h2 id="plan-title">${action.title}</h2></header>
    <div class="dialog-body">
      ${action.ask && html`<label class="field"><span>${action.ask.label}</span>
        <span class="field-row"><input type="number" min="0" max="100000" value=${value} onInput=${change}
          onKeyDown=${(event) => event.key === "Enter" && loadPlan()} />
        <button type="button" onClick=${loadPlan}>Show plan</button></span></label>`}
      ${action.about && html`<p class="muted">${action.about}</p>`}
      ${error && html`<${Problem} error=${error} again=${loadPlan} />`}
      ${phase === "planning" && html`<p class="muted" aria-live="polite">Asking the server what would happen…</p>`}
      ${planned && html`<${Plan} plan=${planned.plan} />`}
    </div>
    <footer>
      ${!mayChange && html`<p class="muted grow">${["viewer", "drainer"].includes(session.role) ? html`Read-only: your role is ${session.role}.` : html`Read-only: start <code>nstance-admin serve</code> with <code>--allow-changes</code> to act.`}</p>`}
      <button type="button" onClick=${onClose}>Cancel</button>
      <button type="button" class=${`primary ${action.tone || ""}`} disabled=${!mayChange || phase !== "asking" || !planned} onClick=${carryOut}>
        ${phase === "doing" ? "Working…" : action.verb}</button>
    </footer>
  </dialog>`;
}

// Equal steps share a line with their count.
export function Plan({ plan, empty = "No instance is touched", about = "The plan has no steps for instances." }) {
  const rows = [];
  for (const each of plan.plan) {
    const last = rows[rows.length - 1];
    if (last && last.action === each.action && last.reason === each.reason && last.message === each.message) {
      last.ids.push(each.instance_id);
    } else {
      rows.push({ ...each, ids: [each.instance_id] });
    }
  }
  return html`<div class="plan">
    ${plan.warnings.map((text) => html`<div class="notice warn" key=${text}><span class="notice-mark" aria-hidden="true">!</span><p>${text}</p></div>`)}
    ${plan.paused && html`<div class="notice warn"><span class="notice-mark" aria-hidden="true">‖</span><p>The group is paused: these steps follow when it is resumed.</p></div>`}
    ${plan.rollouts.map((each) => html`<p key=${each.shard} class="plan-rollout">Replaces <strong>${number(each.instances)}</strong> instances, at most ${number(each.at_once)} at once, ${each.order}${each.estimate_ms ? html`, about ${duration(each.estimate_ms)}` : ""}${each.extra_vm_ms ? html`, costs about ${duration(each.extra_vm_ms)} of VM time above the size` : ""}${each.held ? html`. It waits: ${each.held}` : ""}.</p>`)}
    ${(plan.costs || []).map((each) => html`<${Cost} key=${each.shard} cost=${each} />`)}
    ${rows.length
      ? html`<ol class="plan-steps">${rows.map((row, index) => html`<li key=${index}>
          <span class=${`tag tag-${row.action}`}>${row.action}</span>
          <div><div>${row.ids.length > 1 ? html`<strong>${number(row.ids.length)} instances</strong>` : row.ids[0] ? html`<code>${row.ids[0]}</code>` : html`<strong>a new instance</strong>`}</div>
          <div class="muted">${row.reason}${row.message ? `: ${row.message}` : ""}</div></div></li>`)}</ol>`
      : html`<${Empty} title=${empty}>${about}<//>`}
  </div>`;
}

// Numbers are missing where a price or a measurement is.
function Cost({ cost }) {
  const { currency, hourly_before: before, hourly_after: after, once } = cost;
  const show = (value) => (value === null ? "unknown" : amount(value, currency));
  const hourly = before === after && before !== null ? html`Costs <strong>${show(before)}</strong> per hour, as now` : html`Costs <strong>${show(after)}</strong> per hour, now ${show(before)}`;
  return html`<p>${hourly}${once ? html`. The rollout costs about ${show(once)} once` : ""}.</p>`;
}
