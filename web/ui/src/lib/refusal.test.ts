import { describe, expect, it } from "vitest";

import { refusalOf, refusals, within } from "./refusal";
import { Schemas, type JSONSchema } from "./schema";

const schemas = new Schemas({
  Workspace: { type: "object", properties: { source: { type: "string" }, target: { type: "string" } }, required: ["source"] },
  Mount: { type: "object", properties: { source: { type: "string" }, write: { type: "boolean" } }, required: ["source"] },
});
const jail: JSONSchema = {
  type: "object",
  required: ["image"],
  properties: {
    image: { type: "string", minLength: 2, maxLength: 8, pattern: "^[a-z]+$" },
    name: { type: "string" },
    level: { type: "integer", minimum: 1, maximum: 3 },
    network: { type: "string", enum: ["isolated", "full"] },
    env: { type: "object", additionalProperties: { type: "string" } },
    workspace: { $ref: "#/components/schemas/Workspace" },
    mounts: { type: "array", items: { $ref: "#/components/schemas/Mount" }, maxItems: 2 },
  },
};

describe("what a schema refuses", () => {
  it.each<[string, object, object]>([
    ["nothing of a name with a space", { image: "debian", name: "made here" }, {}],
    ["nothing of an object that nobody has filled in, though it needs something", { image: "debian", workspace: { source: "", target: undefined } }, {}],
    ["what is missing of one that somebody has", { image: "debian", workspace: { target: "/work" } }, { "workspace.source": "This is needed." }],
    ["what is needed and not there", {}, { image: "This is needed." }],
    ["what is too short", { image: "a" }, { image: "This is shorter than 2 characters." }],
    ["what is too long", { image: "abcdefghi" }, { image: "This is longer than 8 characters." }],
    ["what does not fit", { image: "a b" }, { image: "This does not fit ^[a-z]+$." }],
    ["what is out of bounds", { image: "ab", level: 4 }, { level: "This is more than 3." }],
    ["half a level", { image: "ab", level: 1.5 }, { level: "This is not a whole number." }],
    ["what is no choice", { image: "ab", network: "all" }, { network: "This is not one of isolated, full." }],
    ["a number where text is wanted", { image: "ab", env: { A: 1 } }, { "env.A": "This is not text." }],
    ["what is wrong in a list", { image: "ab", mounts: [{ source: "/a" }, { write: true }] }, { "mounts[1].source": "This is needed." }],
    ["too many", { image: "ab", mounts: [{ source: "/a" }, { source: "/b" }, { source: "/c" }] }, { mounts: "These are more than 2." }],
  ])("is %s", (_, value, want) => expect(refusals(schemas, jail, value)).toEqual(want));
});

it("is told at the field that holds it", () => {
  const refused = { "mounts[1].source": "This is needed.", "limits.memory_mb": "too much" };
  expect(refusalOf(refused, "mounts", true)).toBe("[1].source: This is needed.");
  expect(refusalOf(refused, "limits.memory_mb", false)).toBe("too much");
  expect(within(refused, "limits")).toBe(true);
  expect(within(refused, "lim")).toBe(false);
});
