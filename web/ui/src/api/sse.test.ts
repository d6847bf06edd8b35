import { expect, it } from "vitest";

import { messages } from "./sse";

async function read(...chunks: (string | Uint8Array)[]) {
  const encode = new TextEncoder();
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(typeof chunk === "string" ? encode.encode(chunk) : chunk);
      controller.close();
    },
  });
  const found = [];
  for await (const message of messages(body)) found.push(message);
  return found;
}

it("reads messages that are split at any byte", async () => {
  const text = 'id: 7\nevent: jail\ndata: {"name":"ü"}\n\n:\n\nevent: jails\ndata: []\n\n';
  const bytes = new TextEncoder().encode(text);
  const want = [
    { id: "7", event: "jail", data: '{"name":"ü"}' },
    { id: "7", event: "jails", data: "[]" }, // a message without an id keeps the last one
  ];
  for (let cut = 0; cut <= bytes.length; cut++) {
    expect(await read(bytes.slice(0, cut), bytes.slice(cut))).toEqual(want);
  }
});

it("ignores an incomplete message", async () => {
  expect(await read("id: 1\nevent: jail\ndata: {}")).toEqual([]);
});
