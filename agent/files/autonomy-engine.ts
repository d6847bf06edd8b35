// Written by glasshouse. What OpenCode's agent does is decided by the gateway of its
// jail, and told to it: this file asks and tells. It is a convenience, not a wall: it
// runs beside the agent, which can reach it. What holds is outside of the jail.
import type { Hooks, Plugin, ToolDefinition } from "@opencode-ai/plugin"

const door = (process.env.GLASSHOUSE_DOOR ?? "http://localhost:4097").replace(/\/+$/, "")

// Of these the gateway decides when they are called, so it is not asked before.
const own = new Set(["coordinate_sibling", "request_resources", "create_task"])

// Long texts that nothing is decided by. A command and a patch go as they are: what is
// cut off would not be judged.
const bulky = new Set(["content", "newString", "oldString"])
const most = 32 * 1024

// How long what broke off is tried again, in milliseconds.
const again = 30_000

// The gateway waits while a person is asked, for hours if it must: Bun would give up
// after five minutes. A connection breaks off when the jail is written down, or the
// gateway begins anew: what was asked is asked again, and a key has it done once. Where
// nothing listens at all there is no gateway.
async function exchange(path: string, init: RequestInit): Promise<Response> {
  for (let end = 0; ; ) {
    const began = Date.now()
    try {
      return await fetch(door + path, init)
    } catch (error: any) {
      const now = Date.now()
      if (now - began > again) end = now + again // it was there until now
      const none = end === 0 && error?.code === "ConnectionRefused"
      if (none || init.signal?.aborted || (end > 0 && now > end)) {
        throw new Error(`the gateway at ${door} does not answer: ${error?.message ?? error}`)
      }
      if (end === 0) end = now + again
      await new Promise((done) => setTimeout(done, 250))
    }
  }
}

async function call(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<any> {
  const headers: Record<string, string> = { "Content-Type": "application/json" }
  if (/\/(coordinate|tasks)$/.test(path)) headers["Idempotency-Key"] = crypto.randomUUID()
  const init = { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, timeout: false }
  const response = await exchange(path, init as RequestInit)
  const text = await response.text()
  let answer: any
  try {
    answer = text === "" ? {} : JSON.parse(text)
  } catch {
    throw new Error(`the gateway answered ${method} ${path} with ${response.status} and no JSON`)
  }
  if (!response.ok) {
    const why = answer?.detail ?? answer?.title ?? `status ${response.status}`
    throw new Error(answer?.remedy ? `${why} (${answer.remedy})` : why)
  }
  return answer
}

let whoami: Promise<string> | undefined

// Who this is follows from where the gateway is called from; the name is for the paths.
function sandbox(): Promise<string> {
  if (process.env.SANDBOX_ID) return Promise.resolve(process.env.SANDBOX_ID)
  whoami ??= call("GET", "/whoami").then((who) => {
    if (!who.jail) throw new Error("the gateway does not know this sandbox")
    return who.jail
  })
  whoami.catch(() => (whoami = undefined))
  return whoami
}

const at = async (rest: string) => `/sandbox/${encodeURIComponent(await sandbox())}${rest}`

function shown(args: any): any {
  if (args === null || typeof args !== "object" || Array.isArray(args)) return args
  return Object.fromEntries(
    Object.entries(args).map(([key, value]) =>
      bulky.has(key) && typeof value === "string" && value.length > most
        ? [key, `${value.slice(0, most)}… (${value.length - most} more)`]
        : [key, value],
    ),
  )
}

// What was done and could not be told yet. Nothing more is done until it is.
const untold: unknown[] = []

let telling: Promise<void> = Promise.resolve()

// Tools may run at the same time; what they tell keeps its order.
function record(entry: { phase: string; [key: string]: unknown }): Promise<void> {
  const told = telling.then(async () => {
    if (entry.phase === "after") untold.push(entry)
    while (untold.length > 0) {
      await call("POST", await at("/decisions"), untold[0])
      untold.shift()
    }
    if (entry.phase === "before") await call("POST", await at("/decisions"), entry)
  })
  telling = told.catch(() => {}) // who waits for told hears of it
  return told
}

async function decide(tool: string, args: any) {
  const answer = await call("POST", "/decide", { tool, args: shown(args) })
  if (answer.effect === "allow") return
  const rule = answer.rule ? ` [${answer.rule}]` : ""
  const remedy = answer.remedy ? ` ${answer.remedy}` : ""
  throw new Error(`refused: ${answer.reason || "not allowed"}${rule}${remedy}`)
}

const text = (description: string) => ({ type: "string", description })

// The plain form of a schema, which OpenCode takes: nothing has to be installed.
const args = (fields: Record<string, unknown>) => fields as unknown as ToolDefinition["args"]

const tools: Record<string, ToolDefinition> = {
  coordinate_sibling: {
    description: "Ask another agent of this group for something, and wait for its answer. A refusal says why.",
    args: args({
      targetSandboxId: text("Its id or name. GET /whoami of the gateway lists them."),
      action: text("What it is to do, in a word: review, test, implement"),
      context: text("All that it has to know"),
    }),
    async execute(input: any, context) {
      const path = `/sandbox/${encodeURIComponent(input.targetSandboxId)}/coordinate`
      const body = { action: input.action, context: input.context, fromSandboxId: await sandbox() }
      return JSON.stringify(await call("POST", path, body, context.abort))
    },
  },
  request_resources: {
    description: "Ask for more CPU or memory, or give some back. What is beyond your level a person decides.",
    args: args({
      cpu: text('Shares of a CPU, such as "512"; empty to leave it'),
      memory: text('Such as "1024MB"; empty to leave it'),
    }),
    async execute(input: any, context) {
      const body: Record<string, string> = {}
      if (input.cpu) body.cpu = input.cpu
      if (input.memory) body.memory = input.memory
      return JSON.stringify(await call("POST", await at("/resources"), body, context.abort))
    },
  },
  create_task: {
    description: "Put a task into the backlog of the project.",
    args: args({
      title: text("One line"),
      description: text("What is to be done, and why"),
      priority: { type: "string", enum: ["low", "medium", "high"], default: "medium" },
    }),
    async execute(input: any, context) {
      const body = { title: input.title, description: input.description, priority: input.priority || "medium" }
      return JSON.stringify(await call("POST", await at("/tasks"), body, context.abort))
    },
  },
}

const AutonomyEngine: Plugin = async (_input, options): Promise<Hooks> => {
  // False where the harness asks the gateway itself, by the Agent Client Protocol, which
  // comes after this: what is to be done is told by that, but for the gateway's own tools.
  const asks = options?.decide !== false
  return {
    tool: tools,

    // What this throws is what the model reads, and the tool does not run.
    "tool.execute.before": async (input, output) => {
      if (!own.has(input.tool)) {
        if (!asks) return
        await decide(input.tool, output.args)
      }
      await record({
        tool: input.tool,
        args: shown(output.args),
        timestamp: new Date().toISOString(),
        phase: "before",
        call: input.callID,
      })
    },

    // OpenCode does not come here when the tool failed.
    "tool.execute.after": async (input, output) => {
      const entry = {
        tool: input.tool,
        args: shown(input.args),
        timestamp: new Date().toISOString(),
        phase: "after",
        call: input.callID,
        title: output.title,
        output: String(output.output ?? "").slice(0, 2048),
      }
      // It is done, and no error makes it undone. It is told before the next tool runs.
      await record(entry).catch((error) => console.error(`glasshouse: ${error.message}`))
    },
  }
}

export default AutonomyEngine
