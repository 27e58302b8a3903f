// What all pages use: templates, hooks, times, and small components.
import { createElement, Fragment, render } from "./vendor/preact-11.2.0.mjs";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks-11.2.0.mjs";
import htm from "./vendor/htm-3.1.1.mjs";

export const html = htm.bind(createElement);
export { Fragment, render, useEffect, useLayoutEffect, useMemo, useRef, useState };

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

// 3d 4h, 5m 10s, 12s: the two largest units.
export function duration(milliseconds) {
  let seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (milliseconds > 0 && milliseconds < 1000) return `${Math.round(milliseconds)}ms`;
  if (milliseconds > 0 && milliseconds < 10000) return `${(milliseconds / 1000).toFixed(1)}s`;
  const parts = [];
  for (const [unit, length] of UNITS) {
    const count = Math.floor(seconds / length);
    if (count || (unit === "s" && !parts.length)) parts.push(`${count}${unit}`);
    seconds -= count * length;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

export function number(value) {
  return Number(value).toLocaleString("en-US");
}

// 1,234.50 USD, and 0.0816 USD: small amounts keep four digits.
export function amount(value, currency) {
  const digits = value >= 1 || !value ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : { maximumFractionDigits: 4 };
  return `${value.toLocaleString("en-US", digits)} ${currency}`;
}

// What several groups cost together, by currency: [{ currency, hourly, unpriced }].
export function totalCost(groups) {
  const found = new Map();
  for (const { cost } of groups) {
    if (!cost) continue;
    const sum = found.get(cost.currency) || { currency: cost.currency, hourly: 0, unpriced: 0 };
    found.set(cost.currency, { ...sum, hourly: sum.hourly + cost.hourly, unpriced: sum.unpriced + cost.unpriced });
  }
  return [...found.values()];
}

export function clock(time) {
  return new Date(time).toLocaleTimeString("en-GB", { hour12: false });
}

// Of another day with its date.
export function when(time) {
  const date = new Date(time);
  return date.toDateString() === new Date().toDateString() ? clock(time) : dateTime(time).slice(5);
}

export function dateTime(time) {
  const date = new Date(time);
  return `${date.toLocaleDateString("en-CA")} ${clock(time)}`;
}

// The current time, again every second while the component is shown.
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

// The answer of a call: of `key`, again every `seconds`, and soon after `trigger` changes. Meanwhile the last answer stays.
export function useAnswer(call, key, seconds, trigger) {
  const [answer, setAnswer] = useState({ key: null, value: null, error: null });
  const state = useRef({ lastRead: 0, trigger });
  state.current.call = call;
  async function read(isStopped) {
    state.current.lastRead = Date.now();
    try {
      const value = await state.current.call();
      if (!isStopped()) setAnswer({ key, value, error: null });
    } catch (error) {
      if (!isStopped()) setAnswer((before) => ({ key, value: before.key === key ? before.value : null, error }));
    }
  }
  useEffect(() => {
    let stopped = false;
    let timer = null;
    async function repeat() {
      await read(() => stopped);
      if (!stopped && seconds) timer = setTimeout(repeat, seconds * 1000);
    }
    repeat();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [key, seconds]);
  useEffect(() => {
    if (trigger === state.current.trigger) return undefined;
    state.current.trigger = trigger;
    let stopped = false;
    const wait = Math.max(0, state.current.lastRead + 1000 - Date.now());
    const timer = setTimeout(() => read(() => stopped), wait);
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [trigger]);
  const isCurrent = answer.key === key;
  return { value: isCurrent ? answer.value : null, error: isCurrent ? answer.error : null, reload: () => read(() => false) };
}

export function link(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function Ago({ time }) {
  const now = useNow();
  if (!time) return html`<span class="muted">never</span>`;
  return html`<time datetime=${new Date(time).toISOString()} title=${dateTime(time)}>${duration(now - new Date(time))} ago</time>`;
}

export function Card({ title, aside, children, ...rest }) {
  return html`<section class="card" ...${rest}>
    ${title && html`<header class="card-head"><h2>${title}</h2>${aside}</header>`}
    ${children}
  </section>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>`;
}

export function Problem({ error, again }) {
  return html`<div class="notice bad" role="alert">
    <span class="notice-mark" aria-hidden="true">✕</span>
    <div><strong>${error.title || "That did not work"}</strong><p>${error.message}</p></div>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

// That what a page shows may be out of date: the last that the shard answered.
export function Stale({ shard }) {
  if (!shard || shard.reachable) return null;
  return html`<div class="notice bad" role="status"><span class="notice-mark" aria-hidden="true">✕</span>
    <p><strong>${shard.shard}</strong> does not answer: ${shard.error}${shard.read_at ? html`; shown as of <${Ago} time=${shard.read_at} />` : ""}</p></div>`;
}

export function Facts({ rows }) {
  return html`<dl class="facts">${rows
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Meter({ label, value, most = 100, unit = "%" }) {
  const part = Math.max(0, Math.min(1, value / most));
  const level = part > 0.9 ? "bad" : part > 0.75 ? "warn" : "good";
  return html`<div class="meter"><div class="meter-text"><span>${label}</span><span>${value.toFixed(unit === "%" ? 0 : 2)}${unit}</span></div>
    <div class="meter-bar" role="meter" aria-label=${label} aria-valuenow=${value} aria-valuemin="0" aria-valuemax=${most}>
      <div class=${`meter-fill ${level}`} style=${{ width: `${part * 100}%` }}></div></div></div>`;
}

// Rows of one height, of which only the visible ones exist: there may be thousands.
export function VirtualRows({ rows, height, row, label, empty, most = 560 }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  if (!rows.length) return empty;
  const shown = Math.min(most, rows.length * height);
  const first = Math.max(0, Math.floor(top / height) - 6);
  const last = Math.min(rows.length, Math.ceil((top + shown) / height) + 6);
  return html`<div class="rows" ref=${box} tabindex="0" role="list" aria-label=${label} style=${{ height: `${shown}px` }}
      onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
    <div class="rows-all" style=${{ height: `${rows.length * height}px` }}>
      <div class="rows-shown" style=${{ transform: `translateY(${first * height}px)` }}>
        ${rows.slice(first, last).map(row)}
      </div>
    </div>
  </div>`;
}
