// Server-sent events over fetch. EventSource would do, but it does not say why
// it was refused, and cannot be told where to go on.
export interface Message {
  id: string; // of this message or the last before it that had one
  event: string;
  data: string;
}

// The longest message that is taken; a stream with a longer one is broken.
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
      if (rest.length > longest) throw new Error("a message of the stream does not end");
      for (const block of blocks) {
        const message = parse(block, id);
        id = message.id;
        if (message.data !== "") yield message;
      }
    }
  } finally {
    // Whoever stops reading wants no more of it.
    await reader.cancel().catch(() => {});
  }
}

function parse(block: string, id: string): Message {
  const message = { id, event: "message", data: "" };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue; // a comment: the stream lives
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
