// Measures what E2B's clients wait for, and prints it as one line of JSON:
//   node bench.mjs VERSION
const { Sandbox } = await import(`e2b-${process.argv[2]}`)

const median = async (n, f, pause = 0) => {
  const took = []
  for (let i = 0; i < n; i++) {
    if (pause) await new Promise((done) => setTimeout(done, pause))
    const began = performance.now()
    await f()
    took.push(performance.now() - began)
  }
  return Number(took.sort((a, b) => a - b)[n >> 1].toFixed(2))
}

const box = await Sandbox.create()

// raw is a command as the SDK asks for it, without the SDK.
const message = JSON.stringify({ process: { cmd: '/bin/bash', args: ['-l', '-c', 'echo hi'] }, stdin: false })
const frame = Buffer.concat([Buffer.from([0, 0, 0, 0, Buffer.byteLength(message)]), Buffer.from(message)])
const raw = async () => {
  const a = await fetch(new URL('/process.Process/Start', process.env.E2B_SANDBOX_URL), {
    method: 'POST',
    body: frame,
    headers: {
      'Content-Type': 'application/connect+json', 'Connect-Protocol-Version': '1', 'X-Access-Token': box.envdAccessToken,
      'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983',
    },
  })
  const text = await a.text()
  if (!text.includes('"exited":true')) throw new Error(text)
}
const run = () => box.commands.run('echo hi')
await median(20, run)
await median(20, raw)
const exec = { sdk: await median(200, run), raw: await median(200, raw) }
const created = []
const fresh = async () => {
  const box = await Sandbox.create()
  created.push(box)
  await box.commands.run('echo hi')
}
// From the pool, which makes a spare when nobody has taken one for a moment: asked for one
// after the other without a pause, most are made while somebody waits.
const first = await median(20, fresh, 1000)
const row = await median(20, fresh)
await Promise.all([box, ...created].map((b) => b.kill()))
console.log(JSON.stringify({ exec, first, row }))
process.exit(0)
