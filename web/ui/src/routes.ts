import type { Route } from "./lib/router.svelte";
import type { IconName } from "./ui/Icon.svelte";

// routes lists every page. The code of a page is loaded when the page is opened.
export const routes: Route[] = [
  { pattern: "/jails", title: "Jails", nav: "jails", view: () => import("./views/jails/Jails.svelte") },
  { pattern: "/jails/:id", title: "Jail", nav: "jails", view: () => import("./views/jail/Jail.svelte") },
  { pattern: "/lineage", title: "Lineage", nav: "lineage", view: () => import("./views/lineage/Lineage.svelte") },
  { pattern: "/approvals", title: "Approvals", nav: "approvals", view: () => import("./views/approvals/Approvals.svelte") },
  { pattern: "/approvals/:id", title: "Approval", nav: "approvals", view: () => import("./views/approvals/Approvals.svelte") },
  { pattern: "/chat/run", title: "Runs", nav: "runs", view: () => import("./views/runs/Runs.svelte") },
  { pattern: "/chat/run/:id", title: "Run", nav: "runs", view: () => import("./views/runs/Run.svelte") },
  { pattern: "/chat/session", title: "Sessions", nav: "runs", view: () => import("./views/runs/Sessions.svelte") },
  { pattern: "/chat/session/:id", title: "Session", nav: "runs", view: () => import("./views/runs/Session.svelte") },
  { pattern: "/schedules", title: "Schedules", nav: "runs", view: () => import("./views/runs/Schedules.svelte") },
  { pattern: "/schedules/:id", title: "Schedule", nav: "runs", view: () => import("./views/runs/Schedules.svelte") },
  { pattern: "/connectors", title: "Connectors", nav: "runs", view: () => import("./views/runs/Connectors.svelte") },
  { pattern: "/chain", title: "Audit log", nav: "chain", view: () => import("./views/chain/Chain.svelte") },
  { pattern: "/chain/:seq", title: "Audit log", nav: "chain", view: () => import("./views/chain/Chain.svelte") },
  { pattern: "/governance", title: "Governance", nav: "governance", view: () => import("./views/governance/Governance.svelte") },
  { pattern: "/capabilities", title: "Capabilities", nav: "capabilities", view: () => import("./views/capabilities/Capabilities.svelte") },
  { pattern: "/capabilities/:id", title: "Capability", nav: "capabilities", view: () => import("./views/capabilities/Capability.svelte") },
  { pattern: "/skills", title: "Skills", nav: "capabilities", view: () => import("./views/capabilities/Skills.svelte") },
  { pattern: "/skills/:name", title: "Skill", nav: "capabilities", view: () => import("./views/capabilities/Skills.svelte") },
  { pattern: "/bundles", title: "Bundles", nav: "capabilities", view: () => import("./views/capabilities/Bundles.svelte") },
  { pattern: "/publishers", title: "Publishers", nav: "capabilities", view: () => import("./views/capabilities/Publishers.svelte") },
  { pattern: "/doctor", title: "Health", nav: "health", view: () => import("./views/health/Health.svelte") },
];

export interface Place {
  id: string;
  label: string;
  icon: IconName;
  address: string;
  key: string; // pressed after g
  more?: boolean; // on phones, in the menu More instead of the bar
}

// places lists the entries of the navigation. On a phone Approvals comes first, because
// answering approval requests is the main use of the UI there.
export const places: Place[] = [
  { id: "jails", label: "Jails", icon: "jails", address: "/jails", key: "j" },
  { id: "lineage", label: "Lineage", icon: "lineage", address: "/lineage", key: "l" },
  { id: "approvals", label: "Approvals", icon: "approvals", address: "/approvals", key: "a" },
  { id: "runs", label: "Runs", icon: "runs", address: "/chat/run", key: "r" },
  { id: "governance", label: "Governance", icon: "governance", address: "/governance", key: "g", more: true },
  { id: "capabilities", label: "Capabilities", icon: "capabilities", address: "/capabilities", key: "k", more: true },
  { id: "chain", label: "Audit log", icon: "chain", address: "/chain", key: "c", more: true },
  { id: "health", label: "Health", icon: "health", address: "/doctor", key: "h", more: true },
];
