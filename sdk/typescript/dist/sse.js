/** Parses lines into server-sent events, as specified in the WHATWG HTML standard. */
export async function* eventsOf(lines) {
    let id;
    let name = "";
    let data = [];
    for await (const line of lines) {
        if (line === "") {
            if (data.length > 0) {
                const event = { name: name || "message", data: JSON.parse(data.join("\n")) };
                if (id !== undefined)
                    event.id = id;
                yield event;
            }
            [id, name, data] = [undefined, "", []];
            continue;
        }
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        let value = colon < 0 ? "" : line.slice(colon + 1);
        if (value.startsWith(" "))
            value = value.slice(1);
        if (field === "event")
            name = value;
        else if (field === "data")
            data.push(value);
        else if (field === "id" && !value.includes("\0"))
            id = value;
    }
}
