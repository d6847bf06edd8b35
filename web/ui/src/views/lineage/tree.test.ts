import { expect, test } from "vitest";
import type { Schema } from "../../api/client";
import { placeNarrow } from "./tree";

type Jail = Schema["LineageJail"];

function chain(depth: number): Jail {
  return { id: `j-${depth}`, name: `jail ${depth}`, state: "running", created_at: "2026-01-01T00:00:00Z", ...(depth > 1 ? { jails: [chain(depth - 1)] } : {}) } as Jail;
}

test("on a narrow screen each node is on its own line and inside the screen", () => {
  for (const depth of [1, 3, 40]) {
    const { nodes, height } = placeNarrow([chain(depth), chain(2)], 362);
    expect(nodes).toHaveLength(depth + 2);
    expect(new Set(nodes.map((n) => n.y)).size).toBe(nodes.length);
    expect(Math.max(...nodes.map((n) => n.x))).toBeLessThanOrEqual(362 - 160);
    expect(height).toBeGreaterThan(Math.max(...nodes.map((n) => n.y)));
    for (const n of nodes) if (n.parent) expect(n.x).toBeGreaterThan(n.parent.x);
  }
});
