import { expect, it } from "vitest";

import { best, score } from "./fuzzy";

it("matches characters in order only", () => {
  expect(score("gdn", "garden")).toBeGreaterThan(0);
  expect(score("crtrnd", "cart-rounding")).toBeGreaterThan(0); // a begin of a word is not always right
  expect(score("ndg", "garden")).toBe(-1);
  expect(score("garden!", "garden")).toBe(-1);
});

it("matches identifiers only in part", () => {
  const jail = "cart-reduced-tax running · j-nupdy44wvpcg";
  expect(score("crtrnd", jail)).toBe(-1);
  expect(score("nupdy", jail)).toBeGreaterThan(0);
  expect(score("j-nupdy44wvpcg", jail)).toBeGreaterThan(0);
  expect(score("crtax", jail)).toBeGreaterThan(0);
});

it("prefers begins of words", () => {
  const names = ["catalogue", "Logs of a jail", "Audit log", "Agent runs"];
  expect(best("log", names, (n) => n, 4)).toEqual(["Logs of a jail", "Audit log", "catalogue"]);
  expect(best("aruns", names, (n) => n, 4)).toEqual(["Agent runs"]);
  expect(best("ar", ["a garden", "Agent runs"], (n) => n, 4)[0]).toBe("a garden"); // consecutive characters
  expect(best("a r", ["a garden", "Agent runs"], (n) => n, 4)[0]).toBe("Agent runs");
});

it("returns the first items without a query, and none without a match", () => {
  expect(best(" ", [3, 1, 2], String, 2)).toEqual([3, 1]);
  expect(best("zz", ["garden"], (n) => n, 5)).toEqual([]);
});
