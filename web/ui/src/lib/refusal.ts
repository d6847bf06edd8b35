// What a schema would refuse of a value, in words, before it is sent.
import { filled, type JSONSchema, type Schemas, type Value } from "./schema";

// The path of a field, such as limits.memory_mb, and what is wrong with it.
export type Refusals = Record<string, string>;

export function refusals(schemas: Schemas, schema: JSONSchema, value: Value): Refusals {
  const found: Refusals = {};
  check(schemas, schemas.resolve(schema), filled(value) ?? {}, "", found);
  return found;
}

// refusedBy is what the daemon has refused, if it was a field.
export function refusedBy(problem: { field: string; detail: string } | undefined): Refusals {
  return problem?.field ? { [problem.field]: problem.detail } : {};
}

// refusalOf tells what is refused of a field: of itself, or, where a field is shown as
// a whole, of something in it.
export function refusalOf(refused: Refusals, path: string, whole: boolean): string {
  const inside = whole ? Object.keys(refused).find((at) => at.startsWith(`${path}.`) || at.startsWith(`${path}[`)) : undefined;
  return refused[path] ?? (inside ? `${inside.slice(path.length).replace(/^\./, "")}: ${refused[inside]}` : "");
}

// within reports whether something of a field is refused.
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
  for (const name of schema.required ?? []) if (value[name] === undefined) found[at(name)] = "This is needed.";
  for (const [name, member] of Object.entries(value)) {
    const known = schema.properties?.[name] ?? (typeof schema.additionalProperties === "object" ? schema.additionalProperties : undefined);
    if (known) check(schemas, schemas.resolve(known), member, at(name), found);
  }
}

// mismatch is what is wrong with a value itself; what it holds is looked at apart.
function mismatch(schema: JSONSchema, value: Value): string {
  const types = schema.type === undefined ? [] : [schema.type].flat();
  if (types.length > 0 && !types.some((type) => is(type, value))) return `This is not ${types.map((type) => names[type] ?? type).join(" or ")}.`;
  if (schema.enum && !schema.enum.includes(value)) return `This is not one of ${schema.enum.join(", ")}.`;
  if (typeof value === "number") {
    if (schema.minimum !== undefined && value < schema.minimum) return `This is less than ${schema.minimum}.`;
    if (schema.maximum !== undefined && value > schema.maximum) return `This is more than ${schema.maximum}.`;
  }
  if (typeof value === "string") {
    const length = [...value].length;
    if (length < (schema.minLength ?? 0)) return `This is shorter than ${schema.minLength} characters.`;
    if (length > (schema.maxLength ?? Infinity)) return `This is longer than ${schema.maxLength} characters.`;
    if (schema.pattern && !new RegExp(schema.pattern, "u").test(value)) return `This does not fit ${schema.pattern}.`;
  }
  if (Array.isArray(value) && value.length > (schema.maxItems ?? Infinity)) return `These are more than ${schema.maxItems}.`;
  return "";
}

const names: Record<string, string> = { integer: "a whole number", number: "a number", string: "text", boolean: "yes or no", array: "a list", object: "an object", null: "nothing" };

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
