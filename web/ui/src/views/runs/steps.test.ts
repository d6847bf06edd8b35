import { expect, test } from "vitest";
import type { Checkpoint, Run, Step } from "../../api/runs";
import type { Entry } from "../chain/entry";
import { itemsOf, rowsOf, spentBy } from "./steps";

const at = (ms: number) => new Date(ms).toISOString();
const step = (n: number, kind: string, name: string, began: number, ended?: number): Step => ({ n, key: `k${n}`, kind, name, state: ended ? "done" : "begun", began: at(began), ended: ended ? at(ended) : undefined });
const entry = (seq: number, kind: string, time: number, body: object = {}, parent = 0): Entry => ({ seq, kind, time: at(time), parent, body, jail: "", session: "", run: "r-1", capability: "", agent: "", prev: "", hash: "" });
const checkpoint = (id: string, time: number): Checkpoint => ({ id, run: "r-1", n: 1, at: at(time), steps: 1, digest: "" });

test("audit log entries of a step are its children", () => {
  const steps = [step(1, "model", "model", 1000, 1100), step(2, "tool", "bash", 1200, 1300)];
  const entries = [
    entry(1, "run.started", 900),
    entry(2, "llm.called", 1090, { input_tokens: 10, output_tokens: 5, cost_micros: 7 }, 1),
    entry(3, "decision", 1210, { action: "bash" }, 1),
    entry(4, "approval.asked", 1220, {}, 3),
  ];
  const items = itemsOf(steps, entries, [checkpoint("p-1", 1150)], []);
  expect(items.map((i) => i.id)).toEqual(["s1", "p-1", "s2"]);
  expect(items[0]?.children.map((c) => c.id)).toEqual(["e2"]);
  expect(items[2]?.children.map((c) => c.id)).toEqual(["e3"]);
  expect(items[2]?.children[0]?.children.map((c) => c.id)).toEqual(["e4"]);
  expect(spentBy(items[0]!)).toEqual({ tokens: 15, cost: 7 });
});

test("an entry belongs to the concurrent step that it names", () => {
  const steps = [step(1, "tool", "read", 1000), step(2, "tool", "bash", 1001), step(3, "tool", "write", 1002)];
  const items = itemsOf(steps, [entry(5, "decision", 1010, { action: "bash" })], [], []);
  expect(items.find((i) => i.id === "s2")?.children.map((c) => c.id)).toEqual(["e5"]);
});

test("entries and runs of no step are between the steps", () => {
  const steps = [step(1, "tool", "bash", 1000, 1100)];
  const below = { id: "r-2", created: at(1500) } as Run;
  const items = itemsOf(steps, [entry(6, "run.moved", 1050), entry(7, "egress", 5000)], [], [below]);
  expect(items.map((i) => i.id)).toEqual(["s1", "e6", "r-2", "e7"]);
});

test("children of expanded items are shown", () => {
  const items = itemsOf([step(1, "model", "model", 1000, 1100)], [entry(2, "llm.called", 1050)], [], []);
  expect(rowsOf(items, new Set()).map((r) => r.item.id)).toEqual(["s1"]);
  expect(rowsOf(items, new Set(["s1"])).map((r) => [r.item.id, r.depth])).toEqual([["s1", 0], ["e2", 1]]);
});
