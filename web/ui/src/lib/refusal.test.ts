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

describe("validation against a schema", () => {
  it.each<[string, object, object]>([
    ["accepts a name with a space", { image: "debian", name: "made here" }, {}],
    ["accepts an empty object with required fields", { image: "debian", workspace: { source: "", target: undefined } }, {}],
    ["rejects a missing field of an object", { image: "debian", workspace: { target: "/work" } }, { "workspace.source": "Required." }],
    ["rejects a missing field", {}, { image: "Required." }],
    ["rejects short text", { image: "a" }, { image: "Must not be shorter than 2 characters." }],
    ["rejects long text", { image: "abcdefghi" }, { image: "Must not be longer than 8 characters." }],
    ["rejects text that does not match", { image: "a b" }, { image: "Must match ^[a-z]+$." }],
    ["rejects a number out of range", { image: "ab", level: 4 }, { level: "Must be at most 3." }],
    ["rejects a fraction", { image: "ab", level: 1.5 }, { level: "Must be an integer." }],
    ["rejects an unknown value", { image: "ab", network: "all" }, { network: "Must be one of isolated, full." }],
    ["rejects a number for text", { image: "ab", env: { A: 1 } }, { "env.A": "Must be text." }],
    ["rejects an invalid item", { image: "ab", mounts: [{ source: "/a" }, { write: true }] }, { "mounts[1].source": "Required." }],
    ["rejects too many items", { image: "ab", mounts: [{ source: "/a" }, { source: "/b" }, { source: "/c" }] }, { mounts: "Must have at most 2 items." }],
  ])("%s", (_, value, want) => expect(refusals(schemas, jail, value)).toEqual(want));
});

it("reports an error at the field that contains it", () => {
  const refused = { "mounts[1].source": "Required.", "limits.memory_mb": "too much" };
  expect(refusalOf(refused, "mounts", true)).toBe("[1].source: Required.");
  expect(refusalOf(refused, "limits.memory_mb", false)).toBe("too much");
  expect(within(refused, "limits")).toBe(true);
  expect(within(refused, "lim")).toBe(false);
});
