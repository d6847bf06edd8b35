import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import http from 'node:http'

const rejects = (promise, kind, text) =>
  assert.rejects(promise, (e) => {
    assert.ok(e instanceof kind, `${e?.constructor?.name}: ${e?.message}, want ${kind.name}`)
    assert.match(e.message, text)
    return true
  })

// until waits for something to become true.
const until = async (what, f, ms = 30_000) => {
  for (const end = Date.now() + ms; ; await new Promise((r) => setTimeout(r, 20))) {
    const got = await f()
    if (got) return got
    assert.ok(Date.now() < end, `not within ${ms} ms: ${what}`)
  }
}

const base = new URL(process.env.E2B_SANDBOX_URL)

// request makes a request with a host of its own, as a browser does whose resolver knows
// the domain of the sandboxes.
const request = (path, { host, method = 'GET', headers = {}, body } = {}) =>
  new Promise((resolve, reject) => {
    const r = http.request({ host: base.hostname, port: base.port, path, method, headers: { ...(host && { host }), ...headers } }, (res) => {
      let text = ''
      res.setEncoding('utf8')
      res.on('data', (s) => (text += s))
      res.on('end', () => resolve({ status: res.statusCode, text, headers: res.headers }))
    })
    r.on('error', reject)
    r.end(body)
  })

// upgraded speaks with a server once it has changed to another protocol.
const upgraded = (host) =>
  new Promise((resolve, reject) => {
    const r = http.request({ host: base.hostname, port: base.port, path: '/echo', headers: { host, connection: 'Upgrade', upgrade: 'websocket' } })
    r.on('error', reject)
    r.on('response', (res) => reject(new Error(`not upgraded: ${res.statusCode}`)))
    r.on('upgrade', (_, socket) => {
      socket.on('data', (said) => {
        socket.destroy()
        resolve(String(said))
      })
      socket.write('hello\n')
    })
    r.end()
  })

export default async function ({ sdk, check, all }) {
  const { Sandbox, CommandExitError, NotFoundError, InvalidArgumentError, AuthenticationError, TimeoutError, SandboxError } = sdk
  const { FileNotFoundError = NotFoundError, FilesystemEventType: Event } = sdk
  const box = await Sandbox.create({ timeoutMs: 600_000, envs: { WHERE: 'sandbox' } })

  await check('a failed command reports its exit code and output', async () => {
    const e = await box.commands.run('echo out; echo err >&2; exit 3').catch((e) => e)
    assert.ok(e instanceof CommandExitError)
    assert.deepEqual([e.exitCode, e.stdout, e.stderr], [3, 'out\n', 'err\n'])
  })
  await check('stream the output of a running command', async () => {
    const seen = []
    const ran = await box.commands.run('echo one; read -t 0.3 x < <(sleep 1); echo two >&2', {
      onStdout: (s) => seen.push(['out', s]),
      onStderr: (s) => seen.push(['err', s]),
    })
    assert.deepEqual(seen, [['out', 'one\n'], ['err', 'two\n']])
    assert.equal(ran.stdout + ran.stderr, 'one\ntwo\n')
  })
  await check('multi-byte text stays intact across chunks', async () => {
    const text = '✓ ünïcödé 😀 '.repeat(20_000)
    await box.files.write('/tmp/text', text)
    assert.equal((await box.commands.run('cat /tmp/text')).stdout, text)
  })
  await check('run a command with a user, a directory and environment variables', async () => {
    const out = async (cmd, opts) => (await box.commands.run(cmd, opts)).stdout.trim()
    assert.equal(await out('id -un; pwd; echo $WHERE $HOME'), 'user\n/home/user\nsandbox /home/user')
    assert.equal(await out('id -un; pwd', { user: 'root' }), 'root\n/root')
    assert.equal(await out('pwd; echo $WHERE', { cwd: '/tmp', envs: { WHERE: 'here' } }), '/tmp\nhere')
    await rejects(out('true', { user: 'nobody-here' }), AuthenticationError, /nobody-here/)
    await rejects(out('true', { cwd: '/no/such' }), InvalidArgumentError, /no such directory/)
  })
  await check('list, connect to and kill a background command', async () => {
    const cmd = await box.commands.run('while :; do echo tick; sleep 0.1; done', { background: true, envs: { MARK: 'x' } })
    const found = (await box.commands.list()).find((p) => p.pid === cmd.pid)
    assert.equal(found.cmd, '/bin/bash')
    assert.match(found.args.join(' '), /echo tick/)
    assert.deepEqual(found.envs, { MARK: 'x' })
    await cmd.disconnect()
    let ticks = 0
    const again = await box.commands.connect(cmd.pid, { onStdout: () => ticks++ })
    await until('output of the command that was connected to', () => ticks > 2)
    assert.equal(await again.kill(), true)
    await rejects(again.wait(), CommandExitError, /killed/)
    assert.equal(await box.commands.kill(cmd.pid), false)
    await rejects(box.commands.connect(cmd.pid), NotFoundError, /not found/)
  })
  await check('send input to a command and close it', async () => {
    const cmd = await box.commands.run('cat; echo end', { background: true, stdin: true })
    await box.commands.sendStdin(cmd.pid, 'one ')
    await box.commands.sendStdin(cmd.pid, 'twö\n')
    await (box.commands.closeStdin ? box.commands.closeStdin(cmd.pid) : cmd.closeStdin())
    assert.equal((await cmd.wait()).stdout, 'one twö\nend\n')
    await rejects(box.commands.sendStdin(cmd.pid, 'x'), NotFoundError, /not found/)
    const deaf = await box.commands.run('sleep 60', { background: true })
    await rejects(box.commands.sendStdin(deaf.pid, 'x'), SandboxError, /stdin/)
    await deaf.kill()
  })
  await check('a command is killed at its timeout', async () => {
    await rejects(box.commands.run('sleep 60', { timeoutMs: 500 }), TimeoutError, /timeout/)
    await until('the end of the command', async () => !(await box.commands.list()).some((p) => p.args.includes('sleep 60')))
  })
  await check('type into, resize, connect to and kill a terminal', async () => {
    let said = ''
    const decoder = new TextDecoder()
    const onData = (b) => (said += decoder.decode(b, { stream: true }))
    const type = (s) => box.pty.sendInput(pty.pid, new TextEncoder().encode(s))
    const pty = await box.pty.create({ cols: 91, rows: 31, onData, envs: { PS1: '$ ' }, timeoutMs: 0 })
    await type('shopt -s checkwinsize; /bin/true; echo size:$LINES:$COLUMNS $TERM\n')
    await until('the size', () => said.includes('size:31:91 xterm-256color'))
    await box.pty.resize(pty.pid, { cols: 120, rows: 40 })
    await type('/bin/true; echo size:$LINES:$COLUMNS\n')
    await until('the new size', () => said.includes('size:40:120'))
    await pty.disconnect()
    said = ''
    const again = await box.pty.connect(pty.pid, { onData, timeoutMs: 0 })
    await type('echo back\n')
    await until('what is typed after coming back', () => said.includes('back'))
    assert.equal(await box.pty.kill(pty.pid), true)
    await again.wait().catch(() => {})
    assert.equal(await box.pty.kill(pty.pid), false)
  })
  await check('run many commands at once', async () => {
    const n = 30
    const outs = await Promise.all(Array.from({ length: n }, (_, i) => box.commands.run(`echo ${i}`)))
    assert.deepEqual(outs.map((o) => o.stdout), Array.from({ length: n }, (_, i) => `${i}\n`))
  })

  await check('write and read files in all formats', async () => {
    const bytes = crypto.getRandomValues(new Uint8Array(50_000))
    const info = await box.files.write('forms/a.bin', bytes.buffer)
    assert.deepEqual([info.name, info.type, info.path], ['a.bin', 'file', '/home/user/forms/a.bin'])
    assert.deepEqual(await box.files.read('forms/a.bin', { format: 'bytes' }), bytes)
    assert.deepEqual(new Uint8Array(await (await box.files.read('forms/a.bin', { format: 'blob' })).arrayBuffer()), bytes)
    const parts = []
    for await (const part of await box.files.read('forms/a.bin', { format: 'stream' })) parts.push(part)
    assert.deepEqual(new Uint8Array(Buffer.concat(parts)), bytes)
    for (const opts of [{}, { useOctetStream: true }, { gzip: true }]) {
      await box.files.write('forms/text', 'ünï ✓', opts)
      assert.equal(await box.files.read('forms/text', { gzip: opts.gzip }), 'ünï ✓')
    }
    await box.files.write('forms/stream', new Blob([bytes]).stream())
    assert.deepEqual(await box.files.read('forms/stream', { format: 'bytes' }), bytes)
    await box.files.write('forms/empty', '')
    for (const [format, want] of [['text', ''], ['bytes', new Uint8Array()]]) assert.deepEqual(await box.files.read('forms/empty', { format }), want)
    const many = await box.files.write([{ path: 'forms/one', data: '1' }, { path: '/tmp/forms two', data: '2' }])
    assert.deepEqual(many.map((f) => f.path), ['/home/user/forms/one', '/tmp/forms two'])
    assert.equal((await box.commands.run('cat forms/one "/tmp/forms two"; stat -c %U forms/one')).stdout, '12user\n')
    await rejects(box.files.read('forms/none'), FileNotFoundError, /does not exist/)
    await rejects(box.files.read('forms'), InvalidArgumentError, /directory/)
    await rejects(box.files.write('forms', 'x'), InvalidArgumentError, /directory/)
  })
  await check('upload and download a large file', async () => {
    const mb = all ? 1024 : 8
    const piece = crypto.getRandomValues(new Uint8Array(1 << 16))
    let left = mb * 16
    const source = new ReadableStream({ pull: (c) => (left-- > 0 ? c.enqueue(piece) : c.close()) })
    await box.files.write('/tmp/large', source, { requestTimeoutMs: 0 })
    const info = await box.files.getInfo('/tmp/large')
    assert.equal(info.size, mb << 20)
    let size = 0
    for await (const part of await box.files.read('/tmp/large', { format: 'stream' })) {
      assert.equal(part[0], piece[size % piece.length])
      size += part.length
    }
    assert.equal(size, mb << 20)
    await box.files.remove('/tmp/large')
  })
  await check('files keep their metadata', async () => {
    const written = await box.files.write('kept', 'one', { metadata: { Author: 'me', 'a.b': 'x = y' } })
    assert.deepEqual(written.metadata, { author: 'me', 'a.b': 'x = y' })
    assert.deepEqual((await box.files.getInfo('kept')).metadata, written.metadata)
    const [listed] = (await box.files.list('.')).filter((e) => e.name === 'kept')
    assert.deepEqual(listed.metadata, written.metadata)
    assert.deepEqual((await box.files.rename('kept', 'moved')).metadata, written.metadata)
    await box.files.write('moved', 'two')
    assert.equal((await box.files.getInfo('moved')).metadata, undefined)
    await box.files.remove('moved')
  })
  await check('stat, list, rename and remove files', async () => {
    assert.equal(await box.files.makeDir('tree/below'), true)
    assert.equal(await box.files.makeDir('tree/below'), false)
    await box.files.write('tree/below/file', 'four')
    await box.commands.run('ln -s below/file tree/link; chmod 640 tree/below/file')
    const info = await box.files.getInfo('tree/below/file')
    assert.deepEqual([info.size, info.mode, info.permissions, info.owner, info.group, info.type], [4, 0o640, '-rw-r-----', 'user', 'user', 'file'])
    assert.ok(Math.abs(info.modifiedTime - Date.now()) < 3_600_000)
    assert.equal((await box.files.getInfo('tree/link')).symlinkTarget, '/home/user/tree/below/file')
    const names = async (path, opts) => (await box.files.list(path, opts)).map((e) => `${e.type} ${e.path}`)
    assert.deepEqual(await names('tree'), ['dir /home/user/tree/below', 'file /home/user/tree/link'])
    assert.deepEqual(await names('tree', { depth: 2 }), ['dir /home/user/tree/below', 'file /home/user/tree/below/file', 'file /home/user/tree/link'])
    const moved = await box.files.rename('tree/below/file', 'tree/new/place')
    assert.equal(moved.path, '/home/user/tree/new/place')
    assert.equal(await box.files.exists('tree/below/file'), false)
    assert.equal(await box.files.exists('tree/new/place'), true)
    await rejects(box.files.rename('tree/none', 'tree/x'), FileNotFoundError, /no such file/)
    await rejects(box.files.list('tree/none'), FileNotFoundError, /no such file/)
    await rejects(box.files.list('tree/new/place'), InvalidArgumentError, /not a directory/)
    await box.files.remove('tree')
    await box.files.remove('tree')
    assert.equal(await box.files.exists('tree'), false)
  })
  await check('watch files for changes', async () => {
    await box.files.makeDir('watched/deep')
    await box.files.write('watched/deep/old', 'x')
    const seen = []
    let ended = 0
    const handle = await box.files.watchDir('watched', (e) => seen.push(e), { recursive: true, includeEntry: true, timeoutMs: 0, onExit: () => ended++ })
    const saw = (type, name) => until(`${type} of ${name} among ${JSON.stringify(seen)}`, () => seen.find((e) => e.type === type && e.name === name))
    await box.files.write('watched/deep/old', 'new')
    assert.equal((await saw(Event.WRITE, 'deep/old')).entry.path, '/home/user/watched/deep/old')
    await box.files.makeDir('watched/later')
    await saw(Event.CREATE, 'later')
    await box.files.write('watched/later/file', 'x')
    await saw(Event.WRITE, 'later/file')
    await box.commands.run('chmod 600 watched/deep/old; mv watched/deep/old watched/moved; rm watched/later/file')
    await saw(Event.CHMOD, 'deep/old')
    await saw(Event.RENAME, 'deep/old')
    await saw(Event.CREATE, 'moved')
    await saw(Event.REMOVE, 'later/file')
    await handle.stop()
    await until('the end of the watch', () => ended === 1)
    await rejects(box.files.watchDir('watched/none', () => {}), FileNotFoundError, /no such file/)
    await rejects(box.files.watchDir('watched/moved', () => {}), InvalidArgumentError, /not a directory/)
  })
  await check('download files by signed links only', async () => {
    const down = new URL(await box.downloadUrl('signed/file', { useSignatureExpiration: 60 }))
    const up = new URL(await box.uploadUrl('signed/file'))
    const form = new FormData()
    form.append('file', new Blob(['by link']), 'ignored')
    const sent = await fetch(up, { method: 'POST', body: form })
    assert.equal(sent.status, 200, await sent.text())
    const got = await fetch(down)
    assert.equal(`${got.status} ${await got.text()}`, '200 by link')
    assert.equal((await fetch(up)).status === 200, false)
    const inside = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983' }
    for (const change of [(q) => q.set('path', '/etc/passwd'), (q) => q.set('signature_expiration', '9999999999'), (q) => q.set('signature', 'v1_'), (q) => q.delete('signature')]) {
      const forged = new URL(down)
      change(forged.searchParams)
      assert.equal((await fetch(forged, { headers: inside })).status, 401, String(forged))
    }
    const old = new URL(await box.downloadUrl('signed/file', { useSignatureExpiration: -60 }))
    assert.equal((await fetch(old, { headers: inside })).status, 401)
  })
  await check('the token of one sandbox does not open another', async () => {
    const other = await Sandbox.create()
    const opts = { method: 'POST', body: '{}' }
    const list = (token) =>
      fetch(new URL('/process.Process/List', base), {
        ...opts,
        headers: { 'Content-Type': 'application/json', 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983', ...(token && { 'X-Access-Token': token }) },
      }).then((r) => r.status)
    assert.equal(await list(box.envdAccessToken), 200)
    assert.equal(await list(other.envdAccessToken), 401)
    assert.equal(await list(), 401)
    await other.kill()
  })
  await check('reach a server in a sandbox by host, by path and over a WebSocket', async () => {
    await box.files.write('/tmp/server', new Blob([await readFile('server')]))
    const serve = await box.commands.run('chmod 755 /tmp/server && exec /tmp/server 8123', { background: true, timeoutMs: 0 })
    const host = box.getHost(8123)
    const hello = await until('the server', async () => {
      const a = await request('/hello', { host })
      return a.status !== 502 && a
    })
    assert.equal(hello.status, 200)
    assert.ok(hello.text.startsWith(`GET /hello host=${host}`), hello.text)
    const byPath = await request(`/ports/8123-${box.sandboxId}/hello?x=1`)
    assert.ok(byPath.text.startsWith('GET /hello host='), byPath.text)
    const closed = await request('/', { host: box.getHost(8124) })
    assert.equal(closed.status, 502)
    assert.deepEqual(JSON.parse(closed.text), { sandboxId: box.sandboxId, message: 'The sandbox is running but port is not open', port: 8124, code: 502 })
    assert.match(await upgraded(host), /you said hello/)
    await serve.kill()
  })
  await check('kill a sandbox while a command runs', async () => {
    const dying = await Sandbox.create()
    const cmd = await dying.commands.run('sleep 120', { background: true, timeoutMs: 0 })
    await dying.kill()
    const e = await cmd.wait().catch((e) => e)
    assert.ok(e instanceof Error && !(e instanceof CommandExitError && e.exitCode === 0), String(e))
    await rejects(dying.commands.run('true'), sdk.SandboxNotFoundError ?? SandboxError, /not running/)
    await rejects(dying.files.read('/etc/passwd'), TimeoutError, /./)
    const gone = await request('/', { host: dying.getHost(3000) })
    assert.deepEqual([gone.status, JSON.parse(gone.text).message], [502, 'The sandbox was not found'])
  })
  await box.kill()
}
