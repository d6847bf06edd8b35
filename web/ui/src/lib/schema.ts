// The subset of JSON Schema that the API's document uses.
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

// Kind is the kind of form control for a field.
export type Kind = "object" | "map" | "choice" | "flag" | "number" | "list" | "text" | "json";

export class Schemas {
  constructor(readonly named: Record<string, JSONSchema>) {}

  // resolve follows references. Keywords next to a reference override those of the referenced
  // schema.
  resolve(schema: JSONSchema): JSONSchema {
    const name = schema.$ref?.split("/").pop();
    if (!name) return schema;
    const { $ref: _, ...overrides } = schema;
    return { ...this.resolve(this.named[name] ?? {}), ...overrides };
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

// filled removes empty values, so that the daemon applies its defaults.
export function filled(value: Value): Value {
  if (Array.isArray(value)) return value.length > 0 ? value : undefined;
  if (value === "" || value === null) return undefined;
  if (typeof value !== "object") return value;
  const kept = Object.entries(value as object).map(([name, v]) => [name, filled(v)] as const).filter(([, v]) => v !== undefined);
  return kept.length > 0 ? Object.fromEntries(kept) : undefined;
}

// label converts the name of a field to a label.
export function label(name: string): string {
  const words = name.replaceAll("_", " ").replace(/\bmb$/, "(MiB)").replace(/\bms$/, "(ms)").replace(/\bcpu\b/, "CPU").replace(/\boci\b/, "OCI").replace(/\bpids\b/, "PIDs");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
