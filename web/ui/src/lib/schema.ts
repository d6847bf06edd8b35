// JSON Schema, as much of it as the API's own documents use.
export interface JSONSchema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  properties?: Record<string, JSONSchema>;
  required?: string[];
  items?: JSONSchema;
  additionalProperties?: JSONSchema | boolean;
  enum?: unknown[];
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  maxItems?: number;
  pattern?: string;
  default?: unknown;
}

export type Value = unknown;

// What a field is, to the form that shows it.
export type Kind = "object" | "map" | "choice" | "flag" | "number" | "list" | "text" | "json";

export class Schemas {
  constructor(readonly named: Record<string, JSONSchema>) {}

  // resolve follows references. What stands beside one says more than what it
  // refers to.
  resolve(schema: JSONSchema): JSONSchema {
    const name = schema.$ref?.split("/").pop();
    if (!name) return schema;
    const { $ref: _, ...beside } = schema;
    return { ...this.resolve(this.named[name] ?? {}), ...beside };
  }

  kind(schema: JSONSchema): Kind {
    const type = Array.isArray(schema.type) ? schema.type.find((t) => t !== "null") : schema.type;
    if (schema.enum) return "choice";
    switch (type) {
      case "boolean":
        return "flag";
      case "integer":
      case "number":
        return "number";
      case "string":
        return "text";
      case "array":
        return this.resolve(schema.items ?? {}).type === "string" ? "list" : "json";
      case "object":
        if (schema.properties) return "object";
        return typeof schema.additionalProperties === "object" && this.resolve(schema.additionalProperties).type === "string" ? "map" : "json";
      default:
        return "json";
    }
  }
}

// filled leaves out what has not been filled in, so that the daemon's defaults
// are the daemon's.
export function filled(value: Value): Value {
  if (Array.isArray(value)) return value.length > 0 ? value : undefined;
  if (value === "" || value === null) return undefined;
  if (typeof value !== "object") return value;
  const kept = Object.entries(value as object).map(([name, v]) => [name, filled(v)] as const).filter(([, v]) => v !== undefined);
  return kept.length > 0 ? Object.fromEntries(kept) : undefined;
}

// label makes words of a field's name.
export function label(name: string): string {
  const words = name.replaceAll("_", " ").replace(/\bmb$/, "(MiB)").replace(/\bms$/, "(ms)").replace(/\bcpu\b/, "CPU").replace(/\boci\b/, "OCI").replace(/\bpids\b/, "PIDs");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
