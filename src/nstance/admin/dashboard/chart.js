// Lines over time, drawn by uPlot in the colors of the theme.
import { html, useEffect, useRef } from "./ui.js";

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const MIN_RANGE_SECONDS = 30; // less would repeat the same second on the axis
const LABEL_PIXELS = 90;

// `series`: [{ label, tone, values, dash, fill }]; `x`: seconds since 1970, or hours with `isTime` false.
export function Chart({ x, series, isTime = true, label, height = 220, stepped = false, marks = [] }) {
  const box = useRef(null);
  useEffect(() => {
    if (!window.uPlot || !x.length) return undefined;
    const text = color("--muted");
    const line = color("--line");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
    const plot = new window.uPlot(
      {
        width: Math.max(200, box.current.clientWidth),
        height,
        cursor: { y: false },
        legend: { live: true },
        scales: { x: { time: isTime, range: isTime ? (u, low, high) => [Math.min(low, high - MIN_RANGE_SECONDS), high] : undefined }, y: { range: (u, low, high) => [0, Math.max(1, high * 1.08)] } },
        axes: [{ ...axis, space: LABEL_PIXELS, values: isTime ? [[3600 * 24, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] : undefined }, { ...axis, size: 48, values: (u, ticks) => ticks.map((v) => (Number.isInteger(v) ? v.toLocaleString("en-US") : "")) }],
        series: [
          { label: isTime ? "time" : "hour", value: isTime ? (u, v) => (v === null ? "" : new Date(v * 1000).toLocaleTimeString("en-GB")) : (u, v) => (v === null ? "" : v.toFixed(2)) },
          ...series.map((each) => ({
            label: each.label,
            stroke: color(`--${each.tone}`),
            width: 2,
            dash: each.dash,
            fill: each.fill ? `color-mix(in srgb, ${color(`--${each.tone}`)} 14%, transparent)` : undefined,
            points: { show: x.length < 3 },
            paths: stepped ? window.uPlot.paths.stepped({ align: 1 }) : undefined,
          })),
        ],
        hooks: {
          draw: [
            (u) => {
              u.ctx.save();
              u.ctx.strokeStyle = u.ctx.fillStyle = text;
              u.ctx.font = `${11 * devicePixelRatio}px system-ui`;
              for (const mark of marks) {
                const at = u.valToPos(mark.hour, "x", true);
                u.ctx.setLineDash([4, 4]);
                u.ctx.beginPath();
                u.ctx.moveTo(at, u.bbox.top);
                u.ctx.lineTo(at, u.bbox.top + u.bbox.height);
                u.ctx.stroke();
              }
              u.ctx.restore();
            },
          ],
        },
      },
      [x, ...series.map((each) => each.values)],
      box.current,
    );
    const observer = new ResizeObserver(([entry]) => plot.setSize({ width: Math.max(200, Math.floor(entry.contentRect.width)), height }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [x, series, document.documentElement.dataset.theme]);
  return html`<div class="chart" ref=${box} role="img" aria-label=${label} style=${{ "min-height": `${height + 40}px` }}></div>`;
}
