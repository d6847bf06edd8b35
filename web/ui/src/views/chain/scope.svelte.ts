// The filter of the audit log. It is part of the URL, so that a link shows the same entries.
import type { paths } from "../../api/schema";
import { router } from "../../lib/router.svelte";
import { families } from "./entry";

export type ChainQuery = NonNullable<paths["/chain"]["get"]["parameters"]["query"]>;

export const narrowing = ["run", "jail", "session", "capability"] as const;

class Scope {
  families = $derived(router.get("kind").split(",").filter((id) => families.some((f) => f.id === id)));
  query = $derived<ChainQuery>({
    kind: families.filter((f) => this.families.includes(f.id)).flatMap((f) => f.kinds).join(",") || undefined,
    run: router.get("run") || undefined,
    jail: router.get("jail") || undefined,
    session: router.get("session") || undefined,
    capability: router.get("capability") || undefined,
  });
  whole = $derived(Object.values(this.query).every((value) => value === undefined));

  toggle(family: string): void {
    const next = this.families.includes(family) ? this.families.filter((f) => f !== family) : [...this.families, family];
    router.set({ kind: next.length === families.length ? "" : next.join(",") });
  }
}

export const scope = new Scope();
