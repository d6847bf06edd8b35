// The layout of the forest of jails and snapshots.
import { hierarchy, tree } from "d3-hierarchy";
import type { Schema } from "../../api/client";

type LineageJail = Schema["LineageJail"];
type LineageSnapshot = Schema["LineageSnapshot"];

export interface Node {
  id: string;
  kind: "jail" | "snapshot" | "root";
  name: string;
  state: string; // the state of a jail, or the trigger of a snapshot
  created: string;
  memory: boolean;
  children: Node[];
}

export interface Placed extends Node {
  x: number;
  y: number;
  parent?: Placed;
}

export const column = 216;
export const line = 40;

const byTime = (a: Node, b: Node) => a.created.localeCompare(b.created);

function ofJail(jail: LineageJail): Node {
  return {
    id: jail.id, kind: "jail", name: jail.name || jail.id, state: jail.state, created: jail.created_at, memory: false,
    children: [...chained(jail.snapshots ?? []), ...(jail.jails ?? []).map(ofJail)].sort(byTime),
  };
}

// chained puts each snapshot below its parent snapshot. The history of a jail is a line that
// forks where the jail was rewound.
function chained(snapshots: LineageSnapshot[]): Node[] {
  const nodes = new Map(snapshots.map((s) => [s.id, ofSnapshot(s)]));
  const tops: Node[] = [];
  for (const s of snapshots) {
    const node = nodes.get(s.id);
    const above = s.parent ? nodes.get(s.parent) : undefined;
    if (node) (above?.children ?? tops).push(node);
  }
  return tops;
}

function ofSnapshot(s: LineageSnapshot): Node {
  return { id: s.id, kind: "snapshot", name: s.name || s.id, state: s.trigger || s.reason, created: s.created_at, memory: s.memory ?? false, children: (s.jails ?? []).map(ofJail) };
}

// placeNarrow lays the forest out for a screen of a width: one node per line, indented
// below its parent. Deep trees get smaller indents, so that no node leaves the screen.
export function placeNarrow(jails: LineageJail[], width: number): { nodes: Placed[]; width: number; height: number } {
  const nodes: (Placed & { depth: number })[] = [];
  const add = (node: Node, depth: number, parent?: Placed) => {
    const placed: Placed & { depth: number } = { ...node, depth, x: 0, y: nodes.length * line, ...(parent ? { parent } : {}) };
    nodes.push(placed);
    for (const child of node.children) add(child, depth + 1, placed);
  };
  for (const jail of jails) add(ofJail(jail), 0);
  const deepest = Math.max(1, ...nodes.map((n) => n.depth));
  const indent = Math.min(22, Math.max(0, width - narrowest) / deepest);
  for (const n of nodes) n.x = n.depth * indent;
  return { nodes, width, height: nodes.length * line };
}

// narrowest is the least width at which the name of a node can be read.
const narrowest = 160;

// place lays out the forest with the oldest nodes at the left.
export function place(jails: LineageJail[]): { nodes: Placed[]; width: number; height: number } {
  const root = hierarchy<Node>({ id: "", kind: "root", name: "", state: "", created: "", memory: false, children: jails.map(ofJail) });
  const laid = tree<Node>().nodeSize([line, column]).separation(() => 1)(root);
  const all = laid.descendants().slice(1);
  const top = Math.min(0, ...all.map((n) => n.x));
  const placed = new Map<unknown, Placed>();
  for (const n of all) {
    placed.set(n, { ...n.data, x: n.y - column, y: n.x - top, ...(n.parent && placed.has(n.parent) ? { parent: placed.get(n.parent)! } : {}) });
  }
  const nodes = [...placed.values()];
  return { nodes, width: Math.max(0, ...nodes.map((n) => n.x)) + column, height: Math.max(0, ...nodes.map((n) => n.y)) + line };
}
