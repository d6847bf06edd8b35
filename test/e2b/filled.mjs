import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'

// Needs a server at api.example.com and other.example.com that answers with a digest of the
// header X-Key, and with the header itself. CANARY is never to be anywhere but there.
export default async function ({ sdk, check }) {
  const { Sandbox, Secret } = sdk
  const value = process.env.CANARY
  const digest = (s) => createHash('sha256').update(s).digest('hex')
  const ask = async (box, host, scheme = 'https') => JSON.parse((await box.commands.run(`curl -s -m 20 -H 'X-Key: its own' ${scheme}://${host}/`)).stdout)
  const gets = async (box, want, host = 'api.example.com') => assert.equal((await ask(box, host)).digest, digest(want))
  const refused = async (box) => {
    const said = (await box.commands.run(`curl -s -m 20 -w ' %{http_code}' https://api.example.com/`)).stdout
    assert.match(said, /a secret for header X-Key .* is not available[^]* 502$/)
    assert.ok(!said.includes('filled-key'), said)
  }
  const network = { rules: { 'api.example.com': [{ transform: { headers: { 'X-Key': `Bearer ${Secret.fill('Filled-Key')}` } } }] } }

  let box
  await check('the proxy adds a secret to requests outside of the sandbox', async () => {
    await Secret.create('filled-key', value)
    box = await Sandbox.create({ network, envs: { KEY: Secret.fill('filled-key') } })
    const answer = await ask(box, 'api.example.com')
    assert.equal(answer.digest, digest(`Bearer ${value}`))
    assert.equal(answer.key, `Bearer ${'*'.repeat(value.length)}`) // what comes back is masked
    await gets(box, 'its own', 'other.example.com')
    assert.equal((await ask(box, 'api.example.com', 'http')).digest, digest('its own')) // not in the clear
    assert.equal((await box.commands.run('echo $KEY')).stdout.trim(), '${e2b.secrets.filled-key}')
  })
  await check('running sandboxes use the new value of a secret', async () => {
    await Secret.update('filled-key', `${value}-second`)
    await gets(box, `Bearer ${value}-second`)
    await Secret.destroy('filled-key')
    await refused(box)
    await Secret.create('filled-key', value)
    await gets(box, `Bearer ${value}`)
    await box.updateNetwork({})
    await gets(box, 'its own')
    await box.updateNetwork(network)
    await gets(box, `Bearer ${value}`)
  })
  await check('forks and resumed sandboxes keep a secret, snapshots do not contain it', async () => {
    const [fork] = await box.fork({ count: 1 })
    await gets(fork, `Bearer ${value}`)
    await fork.updateNetwork({})
    await gets(fork, 'its own')
    await gets(box, `Bearer ${value}`)
    await fork.kill()
    await box.pause()
    box = await Sandbox.connect(box.sandboxId)
    await gets(box, `Bearer ${value}`)
    const snap = await box.createSnapshot()
    const next = await Sandbox.create(snap.snapshotId)
    await gets(next, 'its own')
    await next.updateNetwork(network)
    await gets(next, `Bearer ${value}`)
    await next.kill()
  })
}
