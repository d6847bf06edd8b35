import type { Schema } from "../../api/client";

export type Rule = Schema["PolicyRule"];

// rule formats a rule as in its file.
export function rule(r: Rule | undefined): string {
  if (!r?.action) return "";
  const where = r.file ? ` (${r.file}${r.line ? `:${r.line}` : ""})` : "";
  return `${r.action} ${r.pattern}: ${r.effect}${where}`;
}

export const effects: Record<string, string> = { allow: "good", ask: "wait", deny: "bad" };
export const levels = ["", "1, guided", "2, intelligent", "3, full"];
