import assert from 'node:assert/strict'

export default async function ({ sdk, check }) {
  const { Sandbox, SandboxError, Secret, SecretError, SecretNotFoundError } = sdk
  const other = { apiKey: process.env.OTHER_KEY }
  const all = async (opts) => {
    const found = []
    for (const pages = Secret.list(opts); pages.hasNext; ) found.push(...(await pages.nextItems()))
    return found
  }

  await check('create, update, list and delete secrets; values are never returned', async () => {
    const made = await Secret.create('OpenAI-key', 'sk-confidential', { metadata: { env: 'test' } })
    assert.match(made.secretId, /^sec_/)
    assert.deepEqual([made.name, made.version, made.metadata], ['openai-key', 1, { env: 'test' }])
    assert.ok(Math.abs(made.createdAt - Date.now()) < 3600_000)
    for (const ref of [made.secretId, 'openai-key', 'OpenAI-Key']) assert.deepEqual(await Secret.getInfo(ref), made)
    const renewed = await Secret.update('openai-key', 'sk-second')
    assert.deepEqual([renewed.secretId, renewed.version, renewed.metadata], [made.secretId, 2, { env: 'test' }])
    assert.ok(renewed.updatedAt > made.updatedAt)
    assert.deepEqual((await Secret.update(made.secretId, 'sk-third', { metadata: {} })).metadata, {})
    for (const name of ['b', 'c']) await Secret.create(name, 'x')
    assert.deepEqual((await all({ limit: 2 })).map((s) => s.name), ['openai-key', 'b', 'c'])
    const pages = Secret.list({ limit: 2 })
    assert.equal((await pages.nextItems()).length, 2)
    assert.equal(pages.hasNext, true)
    assert.equal((await pages.nextItems()).length, 1)
    assert.equal(pages.hasNext, false)
    const told = JSON.stringify([made, renewed, await all()])
    assert.ok(!/sk-/.test(told) && !/"value"/.test(told), told)
    assert.equal(await Secret.destroy('b'), true)
    assert.equal(await Secret.destroy('b'), false)
    assert.equal(await Secret.exists('b'), false)
    assert.equal(await Secret.exists('c'), true)
  })
  await check('refuse invalid secrets', async () => {
    for (const name of ['a b', 'a.b', 'sec_mine', ' ', 'ä', 'a/b', 'x'.repeat(129)]) await assert.rejects(Secret.create(name, 'v'), SecretError, name)
    for (const value of ['', 'x'.repeat(8193)]) await assert.rejects(Secret.create('value', value), SecretError)
    await assert.rejects(Secret.create('metadata', 'v', { metadata: { k: 'x'.repeat(1025) } }), SecretError)
    await assert.rejects(Secret.create('OPENAI-KEY', 'v'), (e) => e instanceof SecretError && /409/.test(e.message) && !/openai/i.test(e.message))
    await assert.rejects(Secret.update('none', 'v'), SecretNotFoundError)
    await assert.rejects(Secret.getInfo('none'), SecretNotFoundError)
    await assert.rejects(Secret.getInfo('sec_none'), SecretError)
    await assert.rejects(Secret.create('key', 'v', { apiKey: 'e2b_' + '0'.repeat(40) }))
  })
  await check('secrets belong to one API key', async () => {
    const mine = await Secret.getInfo('openai-key')
    assert.deepEqual(await all(other), [])
    for (const ref of [mine.secretId, 'openai-key']) {
      assert.equal(await Secret.exists(ref, other), false)
      await assert.rejects(Secret.update(ref, 'theirs', other), SecretNotFoundError)
      assert.equal(await Secret.destroy(ref, other), false)
    }
    const theirs = await Secret.create('openai-key', 'theirs', other)
    assert.notEqual(theirs.secretId, mine.secretId)
    assert.equal(await Secret.destroy('openai-key', other), true)
    assert.deepEqual(await Secret.getInfo('openai-key'), mine)
  })
  await check('network rules show placeholders, not secrets', async () => {
    const headers = { Authorization: `Bearer ${Secret.fill('openai-key')}`, 'X-Later': Secret.fill('not-yet') }
    const network = { rules: { 'api.example.com': [{ transform: { headers } }] } }
    const box = await Sandbox.create({ network })
    assert.deepEqual((await box.getInfo()).network.rules, network.rules)
    for (const value of ['${e2b.secrets.', '${e2b.secrets.}', '${e2b.secrets.a b}', '${e2b.secrets.${e2b.secrets.a}}', '${e2b.identity.tokens.aws}']) {
      const bad = { rules: { 'api.example.com': [{ transform: { headers: { 'X-Key': value } } }] } }
      await assert.rejects(box.updateNetwork(bad), (e) => e instanceof SandboxError && /400/.test(e.message))
      await assert.rejects(Sandbox.create({ network: bad }), (e) => e instanceof SandboxError && /400/.test(e.message))
    }
    await box.kill()
  })
}
