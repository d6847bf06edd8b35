/** One server-sent event. */
export interface ServerEvent {
  /** Absent if the event has none. */
  id?: string;
  name: string;
  /** Decoded from JSON. */
  data: unknown;
}

/** Parses lines into server-sent events, as specified in the WHATWG HTML standard. */
export async function* eventsOf(lines: AsyncIterable<string>): AsyncGenerator<ServerEvent, void, undefined> {
  let id: string | undefined;
  let name = "";
  let data: string[] = [];
  for await (const line of lines) {
    if (line === "") {
      if (data.length > 0) {
        const event: ServerEvent = { name: name || "message", data: JSON.parse(data.join("\n")) };
        if (id !== undefined) event.id = id;
        yield event;
      }
      [id, name, data] = [undefined, "", []];
      continue;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "event") name = value;
    else if (field === "data") data.push(value);
    else if (field === "id" && !value.includes("\0")) id = value;
  }
}
