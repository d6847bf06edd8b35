import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'

const rejects = (promise, kind, text) =>
  assert.rejects(promise, (e) => {
    assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e?.message}, want ${kind.name}`)
    assert.match(e.message, text)
    return true
  })

const until = async (what, f, ms = 30_000) => {
  for (const end = Date.now() + ms; ; await new Promise((r) => setTimeout(r, 50))) {
    const got = await f()
    if (got) return got
    assert.ok(Date.now() < end, `not within ${ms} ms: ${what}`)
  }
}

const base = process.env.E2B_SANDBOX_URL

// What E2B's own live tests look at and the other scenarios do not.
export default async function ({ sdk, check }) {
  const { Sandbox, SandboxError, NotFoundError, CommandExitError, Template } = sdk
  const { FileNotFoundError = NotFoundError } = sdk
  const out = async (box, cmd, opts) => (await box.commands.run(cmd, opts)).stdout.trim()
  const box = await Sandbox.create({ timeoutMs: 900_000 })
  const inside = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983' }
  const port = (b, n, headers) => fetch(`${base}/ports/${n}-${b.sandboxId}/x`, { headers })

  await check('a sandbox reads its own id and metadata', async () => {
    const says = (b) => out(b, 'for n in E2B_SANDBOX E2B_SANDBOX_ID E2B_TEMPLATE_ID; do echo ${!n} $(cat /run/e2b/.$n); done')
    const is = (id) => `true true\n${id} ${id}\nbase base`
    assert.equal(await says(box), is(box.sandboxId))
    const [fork] = await box.fork()
    assert.equal(await says(fork), is(fork.sandboxId))
    await fork.kill()
  })
  await check('pages list the newest first, in any state', async () => {
    const metadata = { pages: String(Math.random()) }
    const old = await Sandbox.create({ metadata })
    const young = await Sandbox.create({ metadata })
    await young.pause()
    const pages = Sandbox.list({ limit: 1, query: { metadata, state: ['running', 'paused'] } })
    const [first] = await pages.nextItems()
    assert.deepEqual([first.sandboxId, first.state, pages.hasNext, !!pages.nextToken], [young.sandboxId, 'paused', true, true])
    const [second] = await pages.nextItems()
    assert.deepEqual([second.sandboxId, second.state, pages.hasNext, pages.nextToken], [old.sandboxId, 'running', false, undefined])
    for (const b of [old, young]) assert.equal(await Sandbox.kill(b.sandboxId), true)
    assert.deepEqual(await Sandbox.list({ query: { metadata } }).nextItems(), [])
  })
  await check('connecting does not shorten the timeout', async () => {
    const { endAt } = await box.getInfo()
    await Sandbox.connect(box.sandboxId, { timeoutMs: 10_000 })
    assert.deepEqual((await box.getInfo()).endAt, endAt)
    await box.connect({ timeoutMs: 1_200_000 })
    assert.ok((await box.getInfo()).endAt > endAt)
  })
  await check('a sandbox paused at its timeout resumes when a client connects', async () => {
    const lazy = await Sandbox.create({ timeoutMs: 1500, lifecycle: { onTimeout: 'pause', autoResume: false } })
    await until('the end of its time', async () => (await lazy.getInfo()).state === 'paused')
    await rejects(lazy.commands.run('true'), SandboxError, /not running|timeout/)
    for (const [what, f] of Object.entries({ fork: () => lazy.fork(), snapshot: () => lazy.createSnapshot(), network: () => lazy.updateNetwork({}) })) {
      await rejects(f(), SandboxError, /409.*not running/, what)
    }
    await rejects(lazy.setTimeout(1000), NotFoundError, /not found/)
    assert.equal((await lazy.getInfo()).state, 'paused')
    await lazy.connect()
    assert.equal(await lazy.isRunning(), true)
    await lazy.kill()
    for (const f of [() => lazy.fork(), () => lazy.createSnapshot(), () => lazy.updateNetwork({}), () => lazy.pause(), () => lazy.getMetrics(), () => lazy.connect()]) {
      await rejects(f(), NotFoundError, /not found|doesn't exist/)
    }
  })
  await check('metrics of a requested time range', async () => {
    const ago = (s) => new Date(Date.now() - 1000 * s)
    assert.ok((await until('a measurement', async () => (await box.getMetrics({ start: ago(120), end: ago(0) })).length)) > 0)
    assert.deepEqual(await box.getMetrics({ start: ago(3600), end: ago(1800) }), [])
  })
  await check('find snapshots by name', async () => {
    const snap = await box.createSnapshot({ name: 'by-this-name' })
    assert.deepEqual((await Sandbox.listSnapshots({ name: 'by-this-name' }).nextItems()).map((s) => s.snapshotId), [snap.snapshotId])
    assert.deepEqual(await Sandbox.listSnapshots({ name: 'by-no-name' }).nextItems(), [])
    assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), true)
  })
  await check('a stream reports that its sandbox was killed', async () => {
    const dying = await Sandbox.create()
    const cmd = await dying.commands.run('sleep 60', { background: true, timeoutMs: 0 })
    await dying.kill()
    await rejects(cmd.wait(), SandboxError, /sandbox was killed or reached its end of life/)
  })
  await check('output of a command continues after a pause', async () => {
    const cmd = await box.commands.run('sleep 600', { background: true, timeoutMs: 0 })
    const broken = cmd.wait().catch((e) => e)
    await box.pause()
    assert.match((await broken).message, /the sandbox was paused/)
    await box.connect()
    assert.ok((await box.commands.list()).some((p) => p.pid === cmd.pid))
    const again = await box.commands.connect(cmd.pid)
    assert.equal(again.pid, cmd.pid)
    assert.equal(await again.kill(), true)
    await rejects(again.wait(), CommandExitError, /killed/) // a signal takes effect later than it is sent: kill(2)
    assert.equal(await box.commands.kill(cmd.pid), false)
  })
  await check('commands with any bytes, with closed input, with two readers', async () => {
    assert.equal(await out(box, 'echo "!@#$%^&*()_+"; echo "Hello,\nWorld!"'), '!@#$%^&*()_+\nHello,\nWorld!')
    const cat = await box.commands.run('cat', { background: true, stdin: true })
    await box.commands.sendStdin(cat.pid, '')
    const also = await box.commands.connect(cat.pid)
    await box.commands.sendStdin(cat.pid, 'Hello,\nWorld!')
    await until('what was sent, at both', () => cat.stdout === 'Hello,\nWorld!' && also.stdout === 'Hello,\nWorld!')
    await cat.kill()
    await rejects(box.commands.connect(999_999), NotFoundError, /not found/)
    let said = ''
    const pty = await box.pty.create({ cols: 80, rows: 24, envs: { ABC: '123' }, onData: (b) => (said += Buffer.from(b)) })
    await box.pty.sendInput(pty.pid, new TextEncoder().encode('echo $ABC; exit\n'))
    assert.equal((await pty.wait()).exitCode, 0)
    assert.match(said, /123/)
    assert.equal(await box.pty.kill(999_999), false)
  })
  await check('write many files at once, also as root', async () => {
    assert.deepEqual(await box.files.write([]), [])
    const files = Array.from({ length: 10 }, (_, i) => ({ path: i % 2 ? `/home/user/many${i}` : `/${i}/many${i}`, data: `file ${i}` }))
    assert.deepEqual((await box.files.write(files)).map((f) => [f.path, f.type]), files.map((f) => [f.path, 'file']))
    assert.deepEqual(await Promise.all(files.map((f) => box.files.read(f.path))), files.map((f) => f.data))
    const mine = await box.files.write('of-root', 'x', { user: 'root' })
    assert.deepEqual([mine.path, (await box.files.getInfo('of-root', { user: 'root' })).owner], ['/root/of-root', 'root'])
  })
  await check('list directories, links and attributes', async () => {
    await box.files.makeDir('described/below')
    const dir = await box.files.getInfo('described')
    assert.deepEqual([dir.name, dir.type, dir.mode, dir.permissions, dir.owner, dir.group, dir.size > 0], ['described', 'dir', 0o755, 'drwxr-xr-x', 'user', 'user', true])
    await box.files.write('described/file', 'test')
    assert.equal((await box.files.getInfo('described/file')).symlinkTarget, undefined)
    await out(box, `cd described; ln -s file link; ln -s below to; ln -s round round; : > below/f; python3 -c "import os; os.setxattr('file', 'user.e2b.author', b'me')"`)
    assert.deepEqual((await box.files.getInfo('described/file')).metadata, { author: 'me' })
    assert.equal((await box.files.getInfo('described/link')).symlinkTarget, '/home/user/described/file')
    assert.deepEqual((await box.files.list('described/to')).map((e) => e.path), ['/home/user/described/to/f'])
    await rejects(box.files.list('described/round'), SandboxError, /cyclic symlink/)
    await rejects(box.files.getInfo('described/none'), FileNotFoundError, /no such file/)
    await rejects(box.files.list('described', { depth: -1 }), SandboxError, /depth should be at least one/)
  })
  await check('signed links: upload without a name, ranges, the error after expiry', async () => {
    for (const [user, path] of [[undefined, '/home/user/hello.txt'], ['root', '/root/hello.txt']]) {
      const form = new FormData()
      form.append('file', 'file content')
      const sent = await fetch(await box.uploadUrl('hello.txt', { user, useSignatureExpiration: 10_000 }), { method: 'POST', body: form })
      assert.deepEqual([sent.status, await sent.json()], [200, [{ name: 'hello.txt', path, type: 'file' }]])
      const got = await fetch(await box.downloadUrl('hello.txt', { user }), { headers: { Range: 'bytes=5-11' } })
      assert.deepEqual([got.status, await got.text()], [206, 'content'])
    }
    const late = await fetch(await box.downloadUrl('hello.txt', { useSignatureExpiration: -10_000 }), { headers: inside })
    assert.deepEqual([late.status, await late.json()], [401, { code: 401, message: 'signature is already expired' }])
  })
  await check('ports: token, TLS and Host header', async () => {
    const shut = await Sandbox.create({ network: { allowPublicTraffic: false, maskRequestHost: 'custom.example.com:${PORT}', httpsPorts: [8443] } })
    await shut.files.write('/tmp/server', new Blob([await readFile('server')]))
    const token = { 'e2b-traffic-access-token': shut.trafficAccessToken }
    await shut.commands.run('chmod 755 /tmp/server; /tmp/server 8443 tls & exec /tmp/server 8080', { background: true, timeoutMs: 0 })
    const { network: asked } = await shut.getInfo()
    const knows = asked.httpsPorts !== undefined // older versions of the SDK leave it out
    assert.equal(asked.allowPublicTraffic, false)
    for (const n of knows ? [8080, 8443] : [8080]) {
      assert.equal((await port(shut, n)).status, 403)
      const a = await until(`a server at ${n}`, async () => {
        const a = await port(shut, n, token)
        return a.status === 200 && a
      })
      assert.match(await a.text(), new RegExp(`^GET /x host=custom.example.com:${n} `))
    }
    await shut.kill()
    const wrong = [{ maskRequestHost: '-https://abcd' }, { denyOut: ['example.com'] }, ...(knows ? [{ httpsPorts: [0] }, { httpsPorts: [65536] }] : [])]
    for (const network of wrong) {
      await rejects(Sandbox.create({ network }), SandboxError, /400/)
    }
  })
  await check('git', async () => {
    const [repo, remote] = ['/tmp/git/repo', '/tmp/git/remote.git']
    const author = { authorName: 'Me', authorEmail: 'me@example.com' }
    const text = (s) => box.files.write(`${repo}/README.md`, s)
    await box.git.init(repo, { initialBranch: 'main' })
    await text('one\n')
    assert.equal((await box.git.status(repo)).fileStatus[0].status, 'untracked')
    await box.git.add(repo)
    await box.git.commit(repo, 'first', author)
    await box.git.createBranch(repo, 'feature')
    await box.git.checkoutBranch(repo, 'main')
    await box.git.deleteBranch(repo, 'feature', { force: true })
    assert.deepEqual(await box.git.branches(repo), { branches: ['main'], currentBranch: 'main' })
    await text('two\n')
    await box.git.add(repo, { files: ['README.md'] })
    await box.git.restore(repo, { paths: ['README.md'], staged: true, worktree: false })
    assert.equal((await box.git.status(repo)).hasStaged, false)
    await box.git.reset(repo, { mode: 'hard', target: 'HEAD' })
    assert.equal((await box.git.status(repo)).isClean, true)
    assert.equal(await box.git.remoteGet(repo, 'origin'), undefined)
    await out(box, `git init --bare --initial-branch=main ${remote}`)
    await box.git.remoteAdd(repo, 'origin', remote)
    assert.equal(await box.git.remoteGet(repo, 'origin'), remote)
    await assert.rejects(box.git.pull(repo), /no upstream branch is configured/i)
    await box.git.push(repo, { remote: 'origin', branch: 'main' })
    await box.git.clone(remote, { path: '/tmp/git/clone' })
    await text('three\n')
    await box.git.add(repo)
    await box.git.commit(repo, 'second', author)
    await box.git.push(repo)
    await box.git.pull('/tmp/git/clone')
    assert.equal(await box.files.read('/tmp/git/clone/README.md'), 'three\n')
    await box.git.dangerouslyAuthenticate({ username: 'git', password: 'token', host: 'example.com', protocol: 'https' })
    assert.equal(await box.git.getConfig('credential.helper', { scope: 'global' }), 'store')
  })
  await check('builds with missing users, with links, and in the background', async () => {
    const build = (t, name, opts) => Template.build(t, name, { cpuCount: 1, memoryMB: 512, ...opts })
    await rejects(
      build(Template().fromBaseImage().runCmd('whoami', { user: 'root123' }), 'theirs'),
      Error,
      /failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'/,
    )
    const links = Template().fromBaseImage().makeSymlink('.bashrc', '.bashrc.local').makeSymlink('.bashrc', '.bashrc.local', { force: true })
    const built = await build(links.runCmd('test "$(readlink .bashrc.local)" = .bashrc'), 'theirs:v1')
    assert.ok(built.buildId && built.templateId)
    for (const tag of [':tag', 'theirs:']) await assert.rejects(Template.assignTags('theirs:v1', tag), Error)
    const waits = await Template.buildInBackground(Template().fromBaseImage().runCmd('while ! [ -e /tmp/never ]; do sleep 0.1; done'), 'theirs-waits', { cpuCount: 1, memoryMB: 512 })
    assert.match((await Template.getBuildStatus(waits)).status, /^(waiting|building)$/)
    for (const name of ['theirs', 'theirs-waits']) {
      const gone = await fetch(`${process.env.E2B_API_URL}/templates/${name}`, { method: 'DELETE', headers: { 'X-API-Key': process.env.E2B_API_KEY } })
      assert.equal(gone.status, 204, await gone.text())
    }
  })
  await box.kill()
}
