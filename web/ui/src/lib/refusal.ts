// Validation of a value against a schema before it is sent.
import { filled, type JSONSchema, type Schemas, type Value } from "./schema";

// Refusals maps the path of a field, such as limits.memory_mb, to its error message.
export type Refusals = Record<string, string>;

export function refusals(schemas: Schemas, schema: JSONSchema, value: Value): Refusals {
  const found: Refusals = {};
  check(schemas, schemas.resolve(schema), filled(value) ?? {}, "", found);
  return found;
}

// refusedBy returns the error of the daemon, if it concerns a field.
export function refusedBy(problem: { field: string; detail: string } | undefined): Refusals {
  return problem?.field ? { [problem.field]: problem.detail } : {};
}

// refusalOf returns the error of a field: its own, or, if whole is set, that of a field
// inside it.
export function refusalOf(refused: Refusals, path: string, whole: boolean): string {
  const inside = whole ? Object.keys(refused).find((at) => at.startsWith(`${path}.`) || at.startsWith(`${path}[`)) : undefined;
  return refused[path] ?? (inside ? `${inside.slice(path.length).replace(/^\./, "")}: ${refused[inside]}` : "");
}

// within reports whether a field or a field inside it has an error.
export function within(refused: Refusals, path: string): boolean {
  return refusalOf(refused, path, true) !== "";
}

function check(schemas: Schemas, schema: JSONSchema, value: Value, path: string, found: Refusals): void {
  const wrong = mismatch(schema, value);
  if (wrong) found[path] = wrong;
  else if (Array.isArray(value)) {
    const items = schemas.resolve(schema.items ?? {});
    value.forEach((item, i) => check(schemas, items, item, `${path}[${i}]`, found));
  } else if (typeof value === "object" && value !== null) members(schemas, schema, value as Record<string, Value>, path, found);
}

function members(schemas: Schemas, schema: JSONSchema, value: Record<string, Value>, path: string, found: Refusals): void {
  const at = (name: string) => (path ? `${path}.${name}` : name);
  for (const name of schema.required ?? []) if (value[name] === undefined) found[at(name)] = "Required.";
  for (const [name, member] of Object.entries(value)) {
    const known = schema.properties?.[name] ?? (typeof schema.additionalProperties === "object" ? schema.additionalProperties : undefined);
    if (known) check(schemas, schemas.resolve(known), member, at(name), found);
  }
}

// mismatch returns the error of a value itself, without its members.
function mismatch(schema: JSONSchema, value: Value): string {
  const types = schema.type === undefined ? [] : [schema.type].flat();
  if (types.length > 0 && !types.some((type) => is(type, value))) return `Must be ${types.map((type) => names[type] ?? type).join(" or ")}.`;
  if (schema.enum && !schema.enum.includes(value)) return `Must be one of ${schema.enum.join(", ")}.`;
  if (typeof value === "number") {
    if (schema.minimum !== undefined && value < schema.minimum) return `Must be at least ${schema.minimum}.`;
    if (schema.maximum !== undefined && value > schema.maximum) return `Must be at most ${schema.maximum}.`;
  }
  if (typeof value === "string") {
    const length = [...value].length;
    if (length < (schema.minLength ?? 0)) return `Must not be shorter than ${schema.minLength} characters.`;
    if (length > (schema.maxLength ?? Infinity)) return `Must not be longer than ${schema.maxLength} characters.`;
    if (schema.pattern && !new RegExp(schema.pattern, "u").test(value)) return `Must match ${schema.pattern}.`;
  }
  if (Array.isArray(value) && value.length > (schema.maxItems ?? Infinity)) return `Must have at most ${schema.maxItems} items.`;
  return "";
}

const names: Record<string, string> = { integer: "an integer", number: "a number", string: "text", boolean: "true or false", array: "a list", object: "an object", null: "null" };

function is(type: string, value: Value): boolean {
  switch (type) {
    case "integer":
      return Number.isInteger(value);
    case "array":
      return Array.isArray(value);
    case "null":
      return value === null;
    case "object":
      return typeof value === "object" && value !== null && !Array.isArray(value);
    default:
      return typeof value === type;
  }
}
