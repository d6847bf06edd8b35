// The dimensions of budgets, with their labels and formats.
import { bytes, count, took } from "../../lib/format";

export interface Dimension {
  id: string;
  label: string;
  write: (n: number) => string;
  unit: string; // the unit of the input field
}

// cost formats an amount in millionths of the currency unit.
export function cost(micros: number): string {
  const units = micros / 1e6;
  return units === 0 ? "0" : units < 0.01 ? units.toFixed(5) : units.toFixed(units < 1 ? 4 : 2);
}

const ms = (n: number) => took(n * 1e6);

export const dimensions: Dimension[] = [
  { id: "steps", label: "Steps", write: count, unit: "steps" },
  { id: "llm-tokens", label: "Tokens", write: count, unit: "tokens" },
  { id: "cost-micros", label: "Cost", write: cost, unit: "millionths" },
  { id: "wall-clock-ms", label: "Time", write: ms, unit: "ms" },
  { id: "sandbox-cpu-ms", label: "CPU time", write: ms, unit: "ms" },
  { id: "network-bytes", label: "Network", write: bytes, unit: "bytes" },
  { id: "storage-bytes", label: "Disk", write: bytes, unit: "bytes" },
];
