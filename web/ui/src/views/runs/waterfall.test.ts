import { expect, it } from "vitest";

import type { Step } from "../../api/runs";
import { barOf, modelOf, type Item } from "./steps";

const item = (began: number, ended: number | null): Item =>
  ({ type: "step", id: "s1", at: began, step: { began: new Date(began).toISOString(), ended: ended && new Date(ended).toISOString() } as unknown as Step, children: [] });

it("places the bar of a step in the time of the run", () => {
  expect(barOf(item(1000, 3000), 0, 4000, 0)).toEqual({ left: 25, width: 50 });
  expect(barOf(item(3000, null), 0, 4000, 5000)).toEqual({ left: 75, width: 25 });
  expect(barOf(item(1000, 1000), 1000, 1000, 0)).toBeUndefined();
});

it("finds the model that answered below a step", () => {
  const entry = (kind: string, body: object, children: Item[] = []) => ({ type: "entry", id: kind, at: 0, entry: { kind, body }, children }) as unknown as Item;
  const step = { ...item(0, 1), children: [entry("decision", {}, [entry("llm.called", { model: "asked", served: "answered" })])] } as Item;
  expect(modelOf(step)).toBe("answered");
  expect(modelOf(item(0, 1))).toBe("");
});
