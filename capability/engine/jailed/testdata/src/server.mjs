import { createServer } from "node:http";
import { call, CallError } from "/usr/share/glasshouse/glasshouse-call.mjs";

createServer(async (request, response) => {
  if (request.method === "GET") return response.end();
  let text = "";
  for await (const piece of request) text += piece;
  const asked = JSON.parse(text);
  const answer = { text: asked.text, language: "Node", path: request.url };
  if (asked.call !== undefined) {
    try {
      answer.output = await call(asked.call, asked.input);
    } catch (err) {
      if (!(err instanceof CallError)) throw err;
      answer.kind = err.kind;
      answer.text = err.message;
    }
  }
  response.setHeader("Content-Type", "application/json");
  response.end(JSON.stringify(answer));
}).listen(Number(process.env.PORT), "127.0.0.1");
