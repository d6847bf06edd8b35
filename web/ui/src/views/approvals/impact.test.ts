import { expect, it } from "vitest";

import type { Jail } from "../../api/jails.svelte";
import type { Approval } from "../../api/pending.svelte";
import { heading, impact } from "./impact";

const approval = (action: string, tier = "standard") => ({ title: "jail j-1 asks", tier, question: { action, resource: "x" } }) as Approval;
const jail = (fields: Partial<Jail>) => ({ id: "j-1", name: "cart", network: "isolated", ...fields }) as Jail;

it("names the known actions", () => {
  expect(heading(approval("bash"))).toBe("Run a command");
  expect(heading(approval("places.search"))).toBe("jail j-1 asks");
});

it("says what the jail bounds", () => {
  const said = impact(approval("bash", "elevated"), jail({ network: "proxy", workspace: { source: "/src" } })).join(" ");
  for (const part of ["in the jail cart", "egress rules allow", "until you apply", "second person"]) expect(said).toContain(part);
  expect(impact(approval("bash"), jail({ mounts: [{ source: "/a", target: "/b", write: true }] })).join(" ")).toContain("directories of this host");
  expect(impact(approval("connect"), jail({ network: "full" }))[0]).toBe("Data can leave the jail.");
  expect(impact(approval("bash"), undefined)).toEqual(["Without an answer the request is denied when it expires."]);
});
