// A client of the daemon's API, typed by its OpenAPI document: unknown paths, parameters
// and fields are compile errors.
import { Problem } from "./problem";
import type { components, paths } from "./schema";

export type Schema = components["schemas"];

type Verb = "get" | "post" | "put" | "patch" | "delete";

type PathsOf<V extends Verb> = { [P in keyof paths]: paths[P][V] extends { responses: object } ? P : never }[keyof paths];

type Content<A> = A extends { content: infer C } ? ("application/json" extends keyof C ? C["application/json"] : unknown) : void;
type Answer<O> = O extends { responses: infer R }
  ? R extends { 200: infer A } ? Content<A>
  : R extends { 201: infer A } ? Content<A>
  : void
  : never;

type Body<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? B : never;
type Query<O> = O extends { parameters: { query?: infer Q } } ? Q : never;
type Place<O> = O extends { parameters: { path: infer P } } ? P : never;

interface Options<O> {
  path?: Place<O>;
  query?: Query<O>;
  body?: Body<O>;
  signal?: AbortSignal | undefined;
}

// loggedOut is called when the session has ended.
let loggedOut = () => {};
export function onLoggedOut(run: () => void): void {
  loggedOut = run;
}

// logOut ends the login session of this browser.
export async function logOut(): Promise<void> {
  await post("/logout");
  loggedOut();
}

export async function get<P extends PathsOf<"get">>(path: P, options: Options<paths[P]["get"]> = {}): Promise<Answer<paths[P]["get"]>> {
  return json(await send("get", path, options));
}

export async function post<P extends PathsOf<"post">>(path: P, options: Options<paths[P]["post"]> = {}): Promise<Answer<paths[P]["post"]>> {
  return json(await send("post", path, options));
}

export async function put<P extends PathsOf<"put">>(path: P, options: Options<paths[P]["put"]> = {}): Promise<Answer<paths[P]["put"]>> {
  return json(await send("put", path, options));
}

export async function patch<P extends PathsOf<"patch">>(path: P, options: Options<paths[P]["patch"]> = {}): Promise<Answer<paths[P]["patch"]>> {
  return json(await send("patch", path, options));
}

export async function remove<P extends PathsOf<"delete">>(path: P, options: Options<paths[P]["delete"]> = {}): Promise<void> {
  await send("delete", path, options);
}

// text is get for responses that are not JSON.
export async function text<P extends PathsOf<"get">>(path: P, accept: string, options: Options<paths[P]["get"]> = {}): Promise<string> {
  return (await send("get", path, options, accept)).text();
}

// place returns the URL of a path with its parameters, for links and streams.
export function place<P extends keyof paths & string>(path: P, params: Record<string, string> = {}, query: object = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(params[name] ?? ""));
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== "") asked.append(name, String(one));
    }
  }
  return asked.size > 0 ? `${filled}?${asked}` : filled;
}

async function send(verb: Verb, path: string, options: Options<unknown>, accept = "application/json"): Promise<Response> {
  const address = place(path as keyof paths & string, options.path as unknown as Record<string, string>, (options.query as unknown as object) ?? {});
  const headers: Record<string, string> = { Accept: `${accept}, application/problem+json` };
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(address, {
    method: verb.toUpperCase(),
    headers,
    body: options.body === undefined ? null : JSON.stringify(options.body),
    signal: options.signal ?? null,
  });
  if (answer.ok) return answer;
  if (answer.status === 401) loggedOut();
  throw await Problem.of(answer);
}

async function json<T>(answer: Response): Promise<T> {
  return (answer.status === 204 ? undefined : await answer.json()) as T;
}

// all returns the items of all pages of a list.
export async function all<T>(page: (after?: string) => Promise<{ items: T[]; next?: string }>): Promise<T[]> {
  const items: T[] = [];
  for (let after: string | undefined; ; ) {
    const piece = await page(after);
    items.push(...piece.items);
    if (!piece.next) return items;
    after = piece.next;
  }
}
