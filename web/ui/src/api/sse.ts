// Server-sent events over fetch. EventSource reports neither the reason of an error nor
// can it start after a given message.
export interface Message {
  id: string; // of this message, or of the last earlier one that had an id
  event: string;
  data: string;
}

// The maximum length of a message; a longer one is an error.
const longest = 16 << 20;

export async function* messages(body: ReadableStream<Uint8Array>, heard: () => void = () => {}): AsyncGenerator<Message> {
  const reader = body.pipeThrough<string>(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  let id = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      if (rest.length > longest) throw new Error("message of the event stream is too long");
      for (const block of blocks) {
        const message = parse(block, id);
        id = message.id;
        if (message.data !== "") yield message;
      }
    }
  } finally {
    // The caller stopped reading: cancel the request.
    await reader.cancel().catch(() => {});
  }
}

function parse(block: string, id: string): Message {
  const message = { id, event: "message", data: "" };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment: a heartbeat
    const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    switch (line.slice(0, colon)) {
      case "id":
        message.id = value;
        break;
      case "event":
        message.event = value;
        break;
      case "data":
        data.push(value);
    }
  }
  message.data = data.join("\n");
  return message;
}
