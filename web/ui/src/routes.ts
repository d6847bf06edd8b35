import type { Route } from "./lib/router.svelte";
import type { IconName } from "./ui/Icon.svelte";

// Every page. What a page needs is loaded when it is opened.
export const routes: Route[] = [
  { pattern: "/jails", title: "Jails", nav: "jails", view: () => import("./views/jails/Jails.svelte") },
  { pattern: "/jails/:id", title: "Jail", nav: "jails", view: () => import("./views/jail/Jail.svelte") },
  { pattern: "/lineage", title: "Lineage", nav: "lineage", view: () => import("./views/lineage/Lineage.svelte") },
  { pattern: "/approvals", title: "Approvals", nav: "approvals", view: () => import("./views/approvals/Approvals.svelte") },
  { pattern: "/approvals/:id", title: "Approval", nav: "approvals", view: () => import("./views/approvals/Approvals.svelte") },
];

export interface Place {
  id: string;
  label: string;
  icon: IconName;
  address: string;
  key: string; // after g
}

// places is the rail. On a phone approvals come first: they are what one has a
// phone in the hand for.
export const places: Place[] = [
  { id: "jails", label: "Jails", icon: "jails", address: "/jails", key: "j" },
  { id: "lineage", label: "Lineage", icon: "lineage", address: "/lineage", key: "l" },
  { id: "approvals", label: "Approvals", icon: "approvals", address: "/approvals", key: "a" },
];
