// Runs scenarios against a daemon with one package, such as a version of the SDK:
//   node run.mjs PACKAGE FILE...
// Each line it prints is one scenario's outcome, as JSON.
const [name, ...files] = process.argv.slice(2)
const sdk = await import(name)

async function check(scenario, run) {
  const began = performance.now()
  let error
  try {
    await run()
  } catch (e) {
    const stack = e?.stack ?? ''
    error = stack.includes(e?.message) ? stack : `${e}\n${stack}` // an SDK may put another stack in place
  }
  console.log(JSON.stringify({ scenario, ms: Math.round(performance.now() - began), error }))
}

for (const file of files) {
  const { default: scenarios } = await import(`./${file}`)
  await scenarios({ sdk, check, all: process.env.GLASSHOUSE_TEST === 'all' })
}
process.exit(0) // connections that are kept would hold it up
