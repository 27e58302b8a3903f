// Instances as cells on a canvas: thousands cost no more than one element.
import { STATES, stateOf } from "./states.js";
import { html, link, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

function sizeOf(count) {
  if (count <= 60) return { cell: 18, gap: 4 };
  if (count <= 500) return { cell: 13, gap: 3 };
  return { cell: 8, gap: 2 };
}

let palette = null;
function colors() {
  if (!palette) {
    const style = getComputedStyle(document.documentElement);
    palette = {};
    for (const tone of ["good", "info", "warn", "bad", "leave", "gone"]) {
      palette[tone] = style.getPropertyValue(`--cell-${tone}`).trim();
    }
    palette.surface = style.getPropertyValue("--surface").trim();
    palette.focus = style.getPropertyValue("--text").trim();
  }
  return palette;
}
export function forgetColors() {
  palette = null;
}

export function drawCell(context, x, y, size, state) {
  const { tone, shape } = STATES[state];
  const color = colors()[tone];
  context.fillStyle = context.strokeStyle = color;
  context.lineWidth = Math.max(1.25, size / 9);
  const inset = context.lineWidth / 2;
  const box = () => {
    context.beginPath();
    context.roundRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset, size / 5);
  };
  const line = (x1, y1, x2, y2) => {
    context.beginPath();
    context.moveTo(x + x1 * size, y + y1 * size);
    context.lineTo(x + x2 * size, y + y2 * size);
    context.stroke();
  };
  switch (shape) {
    case "hollow":
      box();
      context.stroke();
      break;
    case "dashed":
      context.setLineDash([size / 5, size / 6]);
      box();
      context.stroke();
      context.setLineDash([]);
      break;
    case "half":
      box();
      context.stroke();
      context.beginPath();
      context.moveTo(x, y + size);
      context.lineTo(x + size, y);
      context.lineTo(x + size, y + size);
      context.fill();
      break;
    case "cross":
      line(0.15, 0.15, 0.85, 0.85);
      line(0.85, 0.15, 0.15, 0.85);
      break;
    default:
      box();
      context.fill();
      context.fillStyle = context.strokeStyle = colors().surface;
      context.lineWidth = Math.max(1.5, size / 6);
      if (shape === "dot") {
        context.beginPath();
        context.arc(x + size / 2, y + size / 2, size / 5, 0, 2 * Math.PI);
        context.fill();
      } else if (shape === "bar") {
        line(0.2, 0.5, 0.8, 0.5);
      } else if (shape === "bang") {
        line(0.5, 0.18, 0.5, 0.56);
        line(0.5, 0.68, 0.5, 0.82);
      }
  }
}

export function Legend({ states }) {
  return html`<ul class="legend" aria-label="Legend">${states.map(
    (state) => html`<li key=${state}><${Mark} state=${state} />${STATES[state].word}</li>`,
  )}</ul>`;
}

// One cell, for legends and tables.
export function Mark({ state, size = 12 }) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    const ratio = window.devicePixelRatio || 1;
    const context = canvas.current.getContext("2d");
    canvas.current.width = canvas.current.height = size * ratio;
    context.scale(ratio, ratio);
    drawCell(context, 0, 0, size, state);
  });
  return html`<canvas class="mark" ref=${canvas} width=${size} height=${size} style=${{ width: `${size}px`, height: `${size}px` }} aria-hidden="true"></canvas>`;
}

// `members`: a map of instances whose `version` changes with it.
export function Grid({ shard, label, members, revision }) {
  const canvas = useRef(null);
  const [width, setWidth] = useState(0);
  const [chosen, setChosen] = useState(null); // { index, x, y } under the pointer or the keyboard
  // What is drawn later is what was there now: the map changes with the next message.
  const ids = [...members.keys()].sort();
  const states = ids.map((id) => stateOf(members.get(id), revision));
  const { cell, gap } = sizeOf(ids.length);
  const step = cell + gap;
  const columns = Math.max(1, Math.floor((width + gap) / step));
  const height = Math.ceil(ids.length / columns) * step - gap;

  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(canvas.current.parentElement);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    const element = canvas.current;
    element.width = width * ratio;
    element.height = Math.max(1, height) * ratio;
    const context = element.getContext("2d");
    context.scale(ratio, ratio);
    states.forEach((state, index) => {
      const x = (index % columns) * step;
      const y = Math.floor(index / columns) * step;
      drawCell(context, x, y, cell, state);
      if (chosen && chosen.index === index) {
        context.strokeStyle = colors().focus;
        context.lineWidth = 1.5;
        context.strokeRect(x - 1.25, y - 1.25, cell + 2.5, cell + 2.5);
      }
    });
  }, [members, members.version, width, revision, chosen, document.documentElement.dataset.theme]);

  function at(event) {
    const box = canvas.current.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / step);
    const index = Math.floor((event.clientY - box.top) / step) * columns + column;
    return column >= 0 && column < columns && index >= 0 && index < ids.length ? index : null;
  }
  function choose(index) {
    setChosen(index === null ? null : { index, x: (index % columns) * step, y: Math.floor(index / columns) * step });
  }
  function open(index) {
    if (index !== null && ids[index]) location.hash = link("instance", shard, ids[index]);
  }
  function onKey(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const now = chosen ? chosen.index : -1;
    if (event.key in moves) {
      event.preventDefault();
      choose(Math.max(0, Math.min(ids.length - 1, now < 0 ? 0 : now + moves[event.key])));
    } else if (event.key === "Enter" && now >= 0) {
      open(now);
    } else if (event.key === "Escape") {
      choose(null);
    }
  }
  const instance = chosen && members.get(ids[chosen.index]);
  const state = instance && states[chosen.index];
  const says = instance
    ? `${instance.id}: ${STATES[state].word}${instance.not_ready || instance.reason ? `, ${instance.not_ready || instance.reason}` : ""}`
    : "";
  return html`<div class="grid">
    <canvas ref=${canvas} tabindex="0" role="application" aria-label=${`${label}: ${ids.length} instances. Arrow keys choose one, Enter opens it.`}
      style=${{ width: "100%", height: `${Math.max(0, height)}px` }}
      onPointerMove=${(event) => choose(at(event))} onPointerLeave=${() => choose(null)}
      onClick=${(event) => open(at(event))} onKeyDown=${onKey} onBlur=${() => choose(null)}></canvas>
    <span class="visually-hidden" aria-live="polite">${says}</span>
    ${instance && html`<div class=${`tip${chosen.x > width / 2 ? " tip-left" : ""}`} style=${{ left: `${chosen.x}px`, top: `${chosen.y + cell + 8}px` }}>
      <div class="tip-state"><${Mark} state=${state} /> ${STATES[state].word}</div>
      <code>${instance.id}</code>
      ${instance.not_ready && html`<div>${instance.not_ready}</div>`}
      ${instance.reason && html`<div>${instance.reason}</div>`}
      ${instance.instance_type && html`<div class="muted">${instance.instance_type}</div>`}
    </div>`}
  </div>`;
}
