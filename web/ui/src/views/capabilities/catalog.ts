// The states and effects of capabilities, and their display.
import { get, type Schema } from "../../api/client";

export type Capability = Schema["Capability"];

export const states: Record<Capability["state"], string> = { approved: "good", pending: "wait", refused: "bad", revoked: "bad" };

// A Group is the versions of one capability, newest first.
export interface Group {
  id: string;
  versions: Capability[];
  now: Capability; // the version that calls use, or else the newest
}

export async function groups(): Promise<Group[]> {
  const found = new Map<string, Capability[]>();
  for (const c of (await get("/capabilities")).items) found.set(c.id, [...(found.get(c.id) ?? []), c]);
  return [...found].flatMap(([id, versions]) => {
    const now = versions.find((c) => c.state === "approved") ?? versions[0];
    return now ? [{ id, versions, now }] : [];
  });
}

export const effects: Record<string, string> = {
  network: "reaches the network",
  fs: "writes files",
  state: "keeps state",
  secrets: "uses secrets",
  exec: "starts programs",
};

// changed reports whether an event may have changed the installed capabilities.
export function changed(kind: string): boolean {
  return kind.startsWith("bundle.") || kind.startsWith("approval.") || kind === "operator.acted";
}
