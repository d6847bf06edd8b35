// The chart of a timeline: bars of the kinds on top of each other, what one
// drags over it, and marks at moments.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import type { Timeline as Data } from "../../api/record";
import type { Kind } from "../../lib/event";

export const stack: Kind[] = ["gap", "proc", "net", "file", "syscall"];

export interface Mark {
  at: number; // milliseconds
  kind: "snapshot" | "moment";
}

interface Wishes {
  zoom: (from: number, to: number) => void;
  travel: (at: number) => void;
  marks: () => Mark[];
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// columns are what uPlot draws: of each kind the sum of it and of those below it,
// the whole first, so that each covers what it is a part of.
export function columns(data: Data): uPlot.AlignedData {
  const buckets = Math.max(1, ...stack.map((kind) => data.counts[kind]?.length ?? 0));
  const times = Array.from({ length: buckets }, (_, i) => (data.from + i * data.step) / 1000);
  const sums: number[][] = [];
  let below = Array<number>(buckets).fill(0);
  for (const kind of stack) {
    below = below.map((n, i) => n + (data.counts[kind]?.[i] ?? 0));
    sums.unshift(below);
  }
  return [times, ...sums];
}

export function chart(node: HTMLElement, data: Data, height: number, wishes: Wishes): uPlot {
  const soft = colour("soft");
  const axis: uPlot.Axis = { stroke: soft, font: "11px system-ui, sans-serif", grid: { stroke: colour("faint"), width: 1 }, ticks: { show: false } };
  const kinds = stack.toReversed();
  return new uPlot(
    {
      width: node.clientWidth,
      height,
      padding: [10, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: true }, y: { range: (_u, _min, max) => [0, Math.max(1, max)] } },
      axes: [
        { ...axis, size: 26, space: 80, values: (_u, splits) => labels(splits) },
        { ...axis, size: 44, space: 28, values: (_u, splits) => splits.map((n) => (Number.isInteger(n) ? short(n) : "")) },
      ],
      series: [{}, ...kinds.map((kind) => ({ fill: colour(kind), width: 0, points: { show: false }, paths: uPlot.paths.bars!({ size: [1, Infinity], align: 1 }) }))],
      hooks: {
        setSelect: [(u) => u.select.width > 4 && wishes.zoom(u.posToVal(u.select.left, "x") * 1000, u.posToVal(u.select.left + u.select.width, "x") * 1000)],
        ready: [(u) => u.over.addEventListener("click", () => u.select.width <= 4 && u.cursor.left !== undefined && wishes.travel(u.posToVal(u.cursor.left, "x") * 1000))],
        draw: [(u) => wishes.marks().forEach((mark) => draw(u, mark))],
      },
    },
    columns(data),
    node,
  );
}

function draw(u: uPlot, mark: Mark): void {
  const x = Math.round(u.valToPos(mark.at / 1000, "x", true)) + 0.5;
  const { left, top, width, height } = u.bbox;
  if (x < left || x > left + width + 1) return;
  const ctx = u.ctx;
  const r = window.devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour(mark.kind === "snapshot" ? "lineage" : "accent");
  ctx.lineWidth = mark.kind === "snapshot" ? r : 2 * r;
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

// labels are as exact as the steps between them.
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
