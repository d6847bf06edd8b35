// The chart of a timeline: stacked bars per kind of event, zooming, and markers.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import type { Timeline as Data } from "../../api/record";

// The kinds in the chart. The rarest is at the bottom, where it is visible. Other event
// types, such as usage, are no activity of the jail.
export const stack = ["proc", "net", "file", "syscall"] as const;

export interface Mark {
  at: number; // milliseconds
  kind: "snapshot" | "moment" | "gap" | "denied" | "approval";
}

const colours: Record<Mark["kind"], string> = { snapshot: "lineage", moment: "accent", gap: "gap", denied: "red", approval: "amber" };

const slip = 4; // pixels: a shorter drag is a click

interface Wishes {
  zoom: (from: number, to: number) => void;
  travel: (at: number) => void;
  marks: () => Mark[];
  gutter: () => number; // pixels left of the plot
  range: () => [number, number]; // milliseconds
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// columns returns the data for uPlot: per kind the sum of its count and of those below it.
// The largest sum comes first, so that later bars are drawn over it.
export function columns(data: Data): uPlot.AlignedData {
  const buckets = Math.max(1, data.buckets);
  const times = Array.from({ length: buckets }, (_, i) => (data.from + i * data.step) / 1000);
  const sums: number[][] = [];
  let below = Array<number>(buckets).fill(0);
  for (const kind of stack) {
    below = below.map((n, i) => n + (data.counts[kind][i] ?? 0));
    sums.unshift(below);
  }
  return [times, ...sums];
}

export function chart(node: HTMLElement, data: Data, height: number, wishes: Wishes): uPlot {
  const soft = colour("soft");
  const axis: uPlot.Axis = { stroke: soft, font: `11px ${getComputedStyle(document.documentElement).getPropertyValue("--sans")}`, grid: { stroke: colour("faint"), width: 1 }, ticks: { show: false } };
  const kinds = stack.toReversed();
  return new uPlot(
    {
      width: node.clientWidth,
      height,
      padding: [12, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false, click: () => {} } },
      scales: { x: { time: true, range: () => wishes.range().map((ms) => ms / 1000) as [number, number] }, y: { range: (_u, _min, max) => [0, Math.max(1, max)] } },
      axes: [
        { ...axis, size: 26, space: 80, values: (_u, splits) => labels(splits) },
        { ...axis, size: () => wishes.gutter(), space: 28, values: (_u, splits) => splits.map((n) => (Number.isInteger(n) ? short(n) : "")) },
      ],
      series: [{}, ...kinds.map((kind) => ({ fill: colour(kind), width: 0, points: { show: false }, paths: uPlot.paths.bars!({ size: [1, Infinity], align: 1 }) }))],
      hooks: {
        setSelect: [(u) => zoom(u, wishes)],
        ready: [(u) => u.over.addEventListener("click", (event) => click(u, event, wishes))],
        draw: [(u) => wishes.marks().forEach((mark) => draw(u, mark))],
      },
    },
    columns(data),
    node,
  );
}

// click selects the moment under the pointer. A hand moves the mouse a little while it clicks,
// and the page may scroll below it: uPlot takes both for a drag and drops the event, unless
// its cursor.drag.click is replaced. The position is of the event, because that of uPlot's
// cursor is relative to where the chart was at the last scroll event.
function click(u: uPlot, event: MouseEvent, wishes: Wishes): void {
  if (u.select.width > slip) return;
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  wishes.travel(u.posToVal(event.clientX - u.over.getBoundingClientRect().left, "x") * 1000);
}

function zoom(u: uPlot, wishes: Wishes): void {
  const { left, width } = u.select;
  if (width <= slip) return;
  wishes.zoom(u.posToVal(left, "x") * 1000, u.posToVal(left + width, "x") * 1000);
  // The selection is zoomed to, so remove it. The click event at the end of the drag comes
  // first: its handler uses the selection to ignore it.
  setTimeout(() => u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false), 50);
}

function draw(u: uPlot, mark: Mark): void {
  const x = Math.round(u.valToPos(mark.at / 1000, "x", true)) + 0.5;
  const { left, top, width, height } = u.bbox;
  if (x < left || x > left + width + 1) return;
  const ctx = u.ctx;
  const r = window.devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour(colours[mark.kind]);
  // Denials and approvals can be frequent: they are symbols above the plot, without a line.
  if (mark.kind === "denied" || mark.kind === "approval") {
    const y = top - 5 * r;
    ctx.beginPath();
    if (mark.kind === "denied") ctx.rect(x - 3 * r, y - 3 * r, 6 * r, 6 * r);
    else [[0, -5], [4.5, 0], [0, 5], [-4.5, 0]].forEach(([dx = 0, dy = 0]) => ctx.lineTo(x + dx * r, y + dy * r));
    ctx.fill();
    ctx.restore();
    return;
  }
  ctx.lineWidth = mark.kind === "moment" ? 2 * r : r;
  if (mark.kind === "snapshot") ctx.setLineDash([3 * r, 3 * r]);
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(x - 5 * r, top - 9 * r);
  ctx.lineTo(x + 5 * r, top - 9 * r);
  ctx.lineTo(x, top - r);
  ctx.fill();
  ctx.restore();
}

const pad = (n: number, w = 2) => String(n).padStart(w, "0");

// labels formats the ticks of the time axis, as precisely as their distance requires.
function labels(splits: number[]): string[] {
  const step = (splits[1] ?? 0) - (splits[0] ?? 0);
  return splits.map((s) => {
    const d = new Date(s * 1000);
    const minute = `${pad(d.getHours())}:${pad(d.getMinutes())}`;
    if (step >= 86400) return `${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;
    if (step >= 60) return minute;
    return `${minute}:${pad(d.getSeconds())}${step < 1 ? `.${pad(d.getMilliseconds(), 3)}` : ""}`;
  });
}

function short(n: number): string {
  return n >= 1e6 ? `${n / 1e6}M` : n >= 1e3 ? `${n / 1e3}k` : String(n);
}
