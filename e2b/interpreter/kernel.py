"""The code interpreter of a sandbox: a server of contexts, and the contexts.

The jail's own python3 reads this program from its standard input. The program needs only the
standard library. The server listens on the sandbox's loopback and runs one process per
context; the processes of Python contexts run this program, too. The server does not
authenticate requests: the proxy to the sandbox's ports does.

The process of a context shares its standard output and error with its children. In addition,
it is connected to the server by:

    a socket: the server sends one JSON line per cell, the process sends JSON lines with
        the cell's results
    a pipe: the server writes one byte when it has forwarded a line with "ordered" set, for
        which the process waits
"""
import ast
import asyncio
import base64
import builtins
import codecs
import collections
import contextlib
import datetime
import fcntl
import functools
import http.server
import importlib.machinery
import importlib.util
import inspect
import io
import json
import linecache
import math
import os
import queue
import re
import select
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import timeit
import traceback
import types
import uuid

OWN = "<interpreter>"  # the name of this file in tracebacks


# --- the server -------------------------------------------------------------------

BEAT = 5  # seconds between two keepalive lines while a cell runs
PATIENCE = 2  # seconds until the process of an interrupted cell is killed; not for Python
MAX_BODY = 64 << 20


class Refusal(Exception):
    """An error response with a text."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status, self.text = status, text


class Execution:
    """The execution of one cell. Its results are in the queue items; None marks the end."""

    def __init__(self):
        self.items = queue.Queue(256)  # bounded: a slow client slows down the cell
        self.over = threading.Event()
        self.left = False  # the client has disconnected

    def put(self, item):
        while not self.left:
            try:
                return self.items.put(item, timeout=0.2)
            except queue.Full:
                pass

    def end(self):
        self.over.set()
        self.put(None)


class Process:
    """The process of a context, from its start to its end."""

    def __init__(self, language, cwd):
        self.language = language
        self.count = 0
        self.mu = threading.Lock()
        self.execution = None  # the running one. guarded by mu
        self.dead = False  # guarded by mu
        ours, its = socket.socketpair()
        went_r, self.went = os.pipe()
        (self.out, out), (self.err, err) = os.pipe(), os.pipe()
        self.ctl = ours
        fds = its.fileno(), went_r
        try:
            self.child = subprocess.Popen(
                argv_of(language, *fds), stdin=subprocess.PIPE, stdout=out, stderr=err, cwd=cwd, pass_fds=fds,
                start_new_session=True, env=environment(),
            )
        except OSError:
            for fd in (self.out, self.err, self.went):
                os.close(fd)
            ours.close()
            raise
        finally:
            its.close()
            for fd in (went_r, out, err):
                os.close(fd)
        try:
            with self.child.stdin as to:
                if language == "python":
                    to.write(SOURCE)
        except BrokenPipeError:
            pass  # the process has ended, which bury reports
        threading.Thread(target=self.reap, daemon=True).start()
        threading.Thread(target=self.pump, daemon=True).start()

    def reap(self):
        """Wait for the end of the process. EOF on the socket is not sufficient, because a
        child may have inherited it."""
        self.child.wait()
        try:
            self.ctl.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def pump(self):
        """Forward the messages and the output of the process until it has ended."""
        texts = {fd: codecs.getincrementaldecoder("utf-8")("replace") for fd in (self.out, self.err)}
        ready = selectors.DefaultSelector()
        for fd in (self.out, self.err, self.ctl):
            ready.register(fd, selectors.EVENT_READ)

        def take(fd, size):
            text = os.read(fd, size)
            if not text:
                ready.unregister(fd)
            self.tell({"type": "stdout" if fd == self.out else "stderr", "text": texts[fd].decode(text)})

        def drain():
            """Forward all output that was written before the next message."""
            for fd in (self.out, self.err):
                size = bytearray(4)
                fcntl.ioctl(fd, termios.FIONREAD, size)
                left = int.from_bytes(size, sys.byteorder)
                if left:
                    take(fd, left)

        partial = []  # of an incomplete line
        while True:
            fds = [key.fd for key, _ in ready.select()]
            for fd in (self.out, self.err):
                if fd in fds:
                    take(fd, 1 << 16)
            if self.ctl.fileno() not in fds:
                continue
            try:
                more = self.ctl.recv(1 << 16)
            except OSError:
                more = b""
            if not more:
                break
            partial.append(more)
            if b"\n" not in more:
                continue
            *lines, rest = b"".join(partial).split(b"\n")
            partial = [rest]
            for line in lines:
                drain()
                if not self.hear(line):
                    break
        drain()
        self.kill()  # it may have closed the socket and still run
        self.bury()
        ready.close()
        for fd in (self.out, self.err, self.went):
            os.close(fd)
        self.ctl.close()

    def hear(self, line):
        try:
            said = json.loads(line)
            if said.get("ordered"):
                os.write(self.went, b".")
            if "item" in said:
                self.tell(said["item"])
            elif said.get("done"):
                with self.mu:
                    execution, self.execution = self.execution, None
                if execution:
                    execution.end()
        except (ValueError, AttributeError, OSError):
            self.kill()  # another program has written to the socket
            return False
        return True

    def tell(self, item):
        with self.mu:
            execution = self.execution
        if execution and item.get("text") != "":
            execution.put(item)

    def bury(self):
        code = self.child.wait()
        with self.mu:
            self.dead = True
            execution, self.execution = self.execution, None
        if execution:
            how = "was ended by signal %d" % -code if code < 0 else "exited with %d" % code
            execution.put({"type": "error", "name": "UnexpectedEndOfExecution", "traceback": "",
                           "value": "Connection to the execution was closed before the execution was finished: the process of the context " + how})
            execution.end()

    def run(self, code, env):
        """Begin a cell, or return None if the process has ended."""
        execution = Execution()
        with self.mu:
            if self.dead:
                return None
            self.count += 1
            self.execution = execution
        execution.put({"type": "number_of_executions", "execution_count": self.count})
        try:
            self.ctl.sendall(request_of(self.language, code, env, self.count))
        except OSError:
            pass  # the process has ended, which pump reports
        return execution

    def interrupt(self):
        self.signal(signal.SIGINT)

    def kill(self):
        self.signal(signal.SIGKILL)

    def signal(self, sig):
        if self.child.poll() is None:
            try:
                os.killpg(self.child.pid, sig)
            except (ProcessLookupError, PermissionError):
                pass


class Context:
    """Runs cells one after the other. They share the state of earlier cells."""

    def __init__(self, language, cwd):
        self.id, self.language, self.cwd = str(uuid.uuid4()), language, cwd
        self.turn = threading.Lock()
        self.mu = threading.Lock()
        self.process = None  # guarded by mu
        self.removed = False  # guarded by mu

    def wire(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    def begin(self, code, env):
        """Run a cell, in a new process if the last one has ended."""
        for _ in range(3):
            with self.mu:
                if self.removed:
                    raise Refusal(404, "Context %s not found" % self.id)
                if self.process is None or self.process.dead:
                    self.process = Process(self.language, self.cwd)
                process = self.process
            execution = process.run(code, env)
            if execution:
                return process, execution
        raise Refusal(500, "the process of the context does not start")

    def end(self, remove=False):
        with self.mu:
            process, self.process = self.process, None
            self.removed = self.removed or remove
        if process:
            process.kill()


class Contexts:
    """All contexts, and the default context of each language."""

    def __init__(self):
        self.home = os.getcwd()
        self.mu = threading.Lock()
        self.all = {}  # guarded by mu
        self.usual = {}  # default contexts by language. guarded by mu
        for language in ("python", "javascript"):
            if language == "python" or lacks(language) is None:
                self.default(language)

    def default(self, language):
        with self.mu:
            known = self.all.get(self.usual.get(language))
            return known or self.add(language, self.home, usual=True)

    def add(self, language, cwd, usual=False):
        """The caller holds mu."""
        why = lacks(language)
        if why:
            raise Refusal(500, "Failed to create context: " + why)
        if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
            raise Refusal(500, "Failed to set working directory")
        context = Context(language, cwd)
        self.all[context.id] = context
        if usual:
            self.usual[language] = context.id
        return context

    def create(self, language, cwd):
        with self.mu:
            return self.add(language, os.path.join(self.home, cwd or ""))

    def get(self, name):
        with self.mu:
            context = self.all.get(name)
        if not context:
            raise Refusal(404, "Context %s not found" % name)
        return context

    def remove(self, name):
        with self.mu:
            context = self.all.pop(name, None)
        if not context:
            raise Refusal(404, "Context %s not found" % name)
        context.end(remove=True)

    def list(self):
        with self.mu:
            return [c.wire() for c in self.all.values()]


def environment():
    env = dict(os.environ)
    env.setdefault("MPLBACKEND", "agg")
    return env


def language_of(name):
    name = (name or "python").lower().strip()
    return {"py": "python", "python3": "python", "js": "javascript", "ts": "typescript", "sh": "bash"}.get(name, name)


PROGRAMS = {"python": sys.executable, "javascript": "node", "typescript": "node", "bash": "bash"}


def lacks(language):
    """The reason why a language is not available, or None."""
    if language not in PROGRAMS:
        return "no such kernel named %s: there are %s" % (language[:64], ", ".join(PROGRAMS))
    if not shutil.which(PROGRAMS[language]):
        return "no such kernel named %s: the sandbox has no %s" % (language, PROGRAMS[language])
    return None


def argv_of(language, ctl, went):
    if language == "python":
        return [sys.executable, "-c", BOOT, "context", str(ctl), str(went)]
    if language == "bash":
        return ["bash", "--norc", "--noprofile", "-c", BASH.replace("CTL", str(ctl)).replace("WENT", str(went)), "bash"]
    return ["node", "-e", NODE, "--", str(ctl), language]


def request_of(language, code, env, count):
    """The encoded cell for the process of its context."""
    if language != "bash":
        return json.dumps({"code": code, "env": env, "count": count}).encode() + b"\n"
    return b"".join(s.replace("\0", "").encode("utf-8", "replace") + b"\0" for s in (bash_before(env), code, bash_after(env)))


NAME = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)


def bash_before(env):
    def quote(s):
        return "'" + s.replace("'", "'\\''") + "'"

    return "\n".join(
        "unset -v __old_{0}; [ -z \"${{{0}+x}}\" ] || __old_{0}=${0}; export {0}={1}".format(k, quote(v))
        for k, v in env.items() if NAME.match(k))


def bash_after(env):
    return "\n".join(
        "if [ -n \"${{__old_{0}+x}}\" ]; then {0}=$__old_{0}; unset -v __old_{0}; else unset -v {0}; fi".format(k)
        for k in env if NAME.match(k))


# The shell of a Bash context reads cells from the socket, runs them and reports their exit
# status. Cells have neither the socket nor the shell's standard input.
BASH = r"""
exec WENT<&-
trap : INT
# The host name and the branch notice differ in every branch of the sandbox.
__branch() {
    local IFS= notice=
    read -r __now </proc/sys/kernel/hostname
    { read -r -d '' notice </run/glasshouse/branch.json; } 2>/dev/null
    __now+=$notice
}
__branch || :
__host=$__now
while IFS= read -r -d '' -u CTL __before && IFS= read -r -d '' -u CTL __code && IFS= read -r -d '' -u CTL __after; do
    eval "$__before" CTL<&-
    __branch || :
    [ "$__now" = "$__host" ] || { __host=$__now; RANDOM=${SRANDOM:-$(od -An -N4 -tu4 /dev/urandom)}; }
    eval "$__code" </dev/null CTL<&-
    __status=$?
    eval "$__after" CTL<&-
    [ $__status -eq 0 ] ||
        printf '{"item":{"type":"error","name":"ExitCode","value":"%d","traceback":""}}\n' $__status >&CTL
    printf '{"done":true}\n' >&CTL
done
"""

# A context of JavaScript uses Node's REPL, which keeps declarations between cells and supports
# top-level await. The program is a block, so that its own declarations do not conflict with
# those of cells.
NODE = r"""{
const fs = require('fs'), os = require('os'), crypto = require('crypto'), net = require('net'), path = require('path'), repl = require('repl'), util = require('util')
const { PassThrough } = require('stream')
const [ctl, language] = process.argv.slice(-2)
const socket = new net.Socket({ fd: Number(ctl), readable: true, writable: true })
const say = (o) => socket.write(JSON.stringify(o) + '\n')
// If the server has closed a connection, the context ends.
for (const s of [socket, process.stdout, process.stderr]) s.on('error', () => process.exit())
process.argv.length = 1
const shell = repl.start({ prompt: '', input: new PassThrough(), output: new PassThrough(), terminal: false, useGlobal: true })
shell.context.require = require('module').createRequire(path.join(process.cwd(), 'cell.js'))
// TypeScript runs without type checks: node removes the types, or else the package typescript,
// if it is installed.
const roots = [process.cwd(), ...require('module').globalPaths, ...(process.env.NODE_PATH || '').split(':'), path.join(process.execPath, '../../lib/node_modules'), '/usr/lib/node_modules', '/usr/local/lib/node_modules', '/usr/share/nodejs']
const compiler = () => {
  try {
    return require(require.resolve('typescript', { paths: roots.filter(Boolean).flatMap((p) => [p, path.dirname(p)]) }))
  } catch {}
}
let strip = require('module').stripTypeScriptTypes
if (language === 'typescript' && !strip) {
  const ts = compiler()
  if (ts) strip = (code) => ts.transpile(code, { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext, removeComments: false })
}
let fail = null
const onError = (e) => fail && fail(e)
process.on('SIGINT', () => onError(Object.assign(new Error('interrupted'), { name: 'KeyboardInterrupt' })))
if (shell._domain) {
  shell._domain.removeAllListeners('error') // the REPL reports exceptions there, not to the callback
  shell._domain.on('error', (e) => (fail ? fail(e) : console.error(e)))
}
process.removeAllListeners('uncaughtException')
process.on('uncaughtException', (e) => (fail ? fail(e) : console.error(e)))
process.on('unhandledRejection', (e) => (fail ? fail(e) : console.error(e)))
const evaluate = (code) =>
  new Promise((resolve, reject) => {
    fail = reject
    if (language === 'typescript') {
      if (!strip) throw new Error('this node cannot take the types off TypeScript: node 22.13 is needed, or the package typescript (npm install -g typescript)')
      code = strip(code)
    }
    shell.eval(code + '\n', shell.context, 'cell', (e, v) => (e ? reject(e.err ?? e) : resolve(v)))
  })
// Math.random and OpenSSL, which node:crypto uses, have the same state in all branches of a
// sandbox. JavaScript cannot seed them, so they are replaced by functions that read /dev/urandom.
const branch = () => {
  try {
    return os.hostname() + fs.readFileSync('/run/glasshouse/branch.json')
  } catch {
    return os.hostname()
  }
}
const urandom = (bytes) => {
  const fd = fs.openSync('/dev/urandom', 'r')
  try {
    for (let at = 0; at < bytes.length; ) at += fs.readSync(fd, bytes, at, bytes.length - at, null)
  } finally {
    fs.closeSync(fd)
  }
  return bytes
}
let known = branch()
const { randomInt, webcrypto = {} } = crypto
const reseed = () => {
  const now = branch()
  if (known === now) return
  known = now
  let at = 0, drawn = Buffer.alloc(0)
  const draw = () => { // a number below 2 ** 48
    if (at === drawn.length) [at, drawn] = [0, urandom(Buffer.alloc(6 << 9))]
    at += 6
    return drawn.readUIntBE(at - 6, 6)
  }
  Math.random = () => draw() / 2 ** 48
  crypto.randomInt = (min, max, done) => {
    if (typeof max !== 'number') [min, max, done] = [0, min, max]
    randomInt(min, max) // throws for invalid arguments
    const span = max - min, most = 2 ** 48 - (2 ** 48 % span)
    let n = draw()
    while (n >= most) n = draw()
    if (!done) return min + (n % span)
    process.nextTick(done, null, min + (n % span))
  }
  crypto.randomBytes = (size, done) => {
    const bytes = urandom(Buffer.alloc(size))
    if (!done) return bytes
    process.nextTick(done, null, bytes)
  }
  crypto.randomUUID = webcrypto.randomUUID = () => {
    const bytes = urandom(Buffer.alloc(16))
    bytes[6] = (bytes[6] & 15) | 64
    bytes[8] = (bytes[8] & 63) | 128
    return bytes.toString('hex').replace(/(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
  }
  webcrypto.getRandomValues = (view) => {
    urandom(new Uint8Array(view.buffer, view.byteOffset, view.byteLength))
    return view
  }
}
const run = async ({ code, env }) => {
  reseed()
  const old = Object.fromEntries(Object.keys(env).map((k) => [k, process.env[k]]))
  Object.assign(process.env, env)
  try {
    const value = await evaluate(code)
    if (value !== undefined) say({ item: result(value) })
  } catch (e) {
    const thrown = e instanceof Error || (e && typeof e === 'object' && 'stack' in e)
    say({ item: { type: 'error', name: String(thrown ? e.name : 'Error'), value: String(thrown ? e.message : util.inspect(e)), traceback: String((thrown && e.stack) || '') } })
  } finally {
    fail = null
    for (const [k, v] of Object.entries(old)) v === undefined ? delete process.env[k] : (process.env[k] = v)
    say({ done: true })
  }
}
const result = (value) => {
  const text = util.inspect(value)
  const item = { type: 'result', is_main_result: true, text: /^'[^]*'$/.test(text) ? text.slice(1, -1) : text }
  if (value && typeof value === 'object' && (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype)) {
    try {
      item.json = JSON.parse(JSON.stringify(value))
    } catch {}
  }
  return item
}
let rest = '', last = Promise.resolve()
socket.setEncoding('utf8')
socket.on('data', (more) => {
  const lines = (rest + more).split('\n')
  rest = lines.pop()
  for (const line of lines) last = last.then(() => run(JSON.parse(line)))
})
socket.on('close', () => process.exit())
socket.on('end', () => process.exit())
}"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    contexts = None

    def log_message(self, *_):
        pass

    def route(self):
        path = self.path.split("?", 1)[0].rstrip("/")
        parts = path.split("/")[1:]
        try:
            if (self.command, path) == ("GET", "/health"):
                return self.answer(200, "OK")
            if (self.command, path) == ("GET", "/contexts"):
                return self.answer(200, self.contexts.list())
            if (self.command, path) == ("POST", "/contexts"):
                b = self.body()
                return self.answer(200, self.contexts.create(language_of(b.get("language")), b.get("cwd")).wire())
            if (self.command, path) == ("POST", "/execute"):
                return self.execute(self.body())
            if parts[0] == "contexts" and len(parts) == 2 and self.command == "DELETE":
                self.contexts.remove(parts[1])
                return self.answer(200, None)
            if parts[0] == "contexts" and len(parts) == 3 and parts[2] == "restart" and self.command == "POST":
                self.contexts.get(parts[1]).end()
                return self.answer(200, None)
            raise Refusal(404, '{"detail":"Not Found"}')
        except Refusal as r:
            self.refuse(r.status, r.text)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_HEAD = do_OPTIONS = route

    def body(self):
        try:
            size = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            size = -1
        if self.headers.get("Transfer-Encoding"):
            text = self.chunks()
        elif 0 <= size <= MAX_BODY:
            text = self.rfile.read(size)
        else:
            raise Refusal(413, "the request is larger than %d bytes" % MAX_BODY)
        try:
            b = json.loads(text or b"{}")
        except ValueError as e:
            raise Refusal(422, "the request is not JSON: %s" % e)
        if not isinstance(b, dict):
            raise Refusal(422, "the request is not a JSON object")
        for name in ("code", "language", "context_id", "cwd"):
            if not isinstance(b.get(name, ""), (str, type(None))):
                raise Refusal(422, "%s is not a string" % name)
        env = b.get("env_vars") or {}
        if not isinstance(env, dict) or any(not isinstance(v, str) or "\0" in k + v or not k or "=" in k for k, v in env.items()):
            raise Refusal(422, "env_vars is not an object with valid names and string values")
        return b

    def chunks(self):
        text = b""
        while True:
            try:
                size = int(self.rfile.readline(32).split(b";")[0], 16)
            except ValueError:
                raise Refusal(400, "the request is truncated")
            if size < 0 or len(text) + size > MAX_BODY:
                raise Refusal(413, "the request is larger than %d bytes" % MAX_BODY)
            text += self.rfile.read(size)
            self.rfile.readline(32)
            if size == 0:
                return text

    def answer(self, status, value):
        text = json.dumps(value).encode()
        self.reply(status, "application/json", text)

    def refuse(self, status, text):
        self.close_connection = True  # the rest of the request is not read
        self.reply(status, "application/json" if text.startswith("{") else "text/plain; charset=utf-8", text.encode())

    def reply(self, status, kind, text):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def execute(self, b):
        if b.get("context_id") and b.get("language"):
            raise Refusal(400, "Only one of context_id or language can be provided")
        if "code" not in b:
            raise Refusal(422, "code is required")
        if b.get("context_id"):
            context = self.contexts.get(b["context_id"])
        else:
            context = self.contexts.default(language_of(b.get("language")))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.beat = time.monotonic() + BEAT
        while not context.turn.acquire(timeout=0.2):
            if not self.there():
                return
        try:
            self.stream(context, b["code"] or "", b.get("env_vars") or {})
        finally:
            context.turn.release()

    def stream(self, context, code, env):
        try:
            process, execution = context.begin(code, env)
        except (Refusal, OSError) as e:
            self.item({"type": "error", "name": type(e).__name__, "value": str(e), "traceback": ""})
            self.wfile.write(b"0\r\n\r\n")
            return
        try:
            while True:
                try:
                    item = execution.items.get(timeout=0.2)
                except queue.Empty:
                    if not self.there():
                        return
                    continue
                if item is None:
                    break
                self.item(item)
            self.wfile.write(b"0\r\n\r\n")
        finally:
            execution.left = True
            self.abandon(process, execution)

    def abandon(self, process, execution):
        """Interrupt a cell whose client has disconnected, and wait for its end. The caller
        holds the context's lock."""
        since = time.monotonic()
        while not execution.over.is_set():
            process.interrupt()
            if execution.over.wait(1):
                return
            if process.language != "python" and time.monotonic() - since > PATIENCE:
                process.kill()

    def item(self, item):
        text = json.dumps(item).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.beat = time.monotonic() + BEAT

    def there(self):
        """Whether the client is still connected. Sends a keepalive if one is due."""
        self.connection.settimeout(None)
        if select.select([self.connection], [], [], 0)[0]:
            try:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    self.close_connection = True
                    return False
            except OSError:
                self.close_connection = True
                return False
        if time.monotonic() >= self.beat:
            self.item({"type": "keepalive"})
        return True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def handle_error(self, *_):
        pass


def serve(port):
    try:
        server = Server(("127.0.0.1", port), Handler)
    except OSError as e:
        sys.exit("listen at port %d: %s" % (port, e))
    Handler.contexts = Contexts()
    sys.stdout.write("ready %d\n" % server.server_address[1])
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # the daemon reads no more output
        os.dup2(null, fd)
    server.serve_forever(poll_interval=None)


# --- a context of Python ----------------------------------------------------------

class Stream(io.TextIOWrapper):
    """A line-buffered output stream. Incomplete lines are flushed after a short delay."""

    soon = kernel = None

    def write(self, s):
        if self.kernel and s and self.kernel.writes is not self:
            self.kernel.change_to(self)
        n = super().write(s)
        if self.soon and s and not s.endswith("\n"):
            self.soon.set()
        return n


class Kernel:
    """Runs cells in the main thread, which receives signals."""

    def __init__(self, ctl, went):
        for fd in (ctl, went):
            os.set_inheritable(fd, False)
        self.ctl, self.went = socket.socket(fileno=ctl), went
        self.saying = threading.RLock()
        self.busy = self.masked = self.pending = False
        self.count = 0
        self.writes = None  # the stream that was written to last
        self.captured = None  # if a list, results are appended to it and not sent to the client
        self.loop = None
        self.pid = os.getpid()
        self.cells, self.values = [""], {}
        self.main = types.ModuleType("__main__")
        self.ns = self.main.__dict__
        self.ns.update(__builtins__=builtins, In=self.cells, Out=self.values, _="", __="", ___="")
        self.first = set(self.ns)
        sys.modules["__main__"] = self.main
        sys.argv = [""]
        self.shell = Shell(self)
        self.randomness = Randomness()
        builtins.display = self.display
        builtins.get_ipython = lambda: self.shell

    def start(self):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        soon = threading.Event()
        for name, fd in (("stdout", 1), ("stderr", 2)):
            stream = Stream(open(fd, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True)
            stream.soon, stream.kernel = soon, self
            setattr(sys, name, stream)
            setattr(sys, "__%s__" % name, stream)
        threading.Thread(target=self.flush_soon, args=(soon,), daemon=True).start()
        signal.signal(signal.SIGINT, self.interrupted)
        sys.meta_path.insert(0, Pictures(self))
        sys.meta_path.insert(0, self.randomness)
        sys.meta_path.append(Notebook(self))
        with self.ctl.makefile("rb") as requests:
            for line in requests:
                self.run(**json.loads(line))

    def flush_soon(self, soon):
        while True:
            soon.wait()
            time.sleep(0.05)
            soon.clear()
            self.flush()

    def flush(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass  # code has replaced the stream

    def change_to(self, stream):
        """Flush the other stream before the first write to stream, to keep the order."""
        was, self.writes = self.writes, stream
        if was and self.busy and threading.current_thread() is threading.main_thread():
            self.flush()
            self.say(ordered=True)

    def interrupted(self, *_):
        if self.masked:
            self.pending = True
        elif self.busy:
            raise KeyboardInterrupt

    def say(self, ordered=False, **what):
        """Send a message to the server. With ordered, wait until the server has forwarded it, so
        that it is in order with the output."""
        if os.getpid() != self.pid:
            return  # a forked child: the server would take the message for its parent's
        text = json.dumps(dict(what, ordered=ordered)).encode() + b"\n"
        with self.saying:
            self.masked = threading.current_thread() is threading.main_thread() or self.masked
            try:
                self.ctl.sendall(text)
                if ordered and not os.read(self.went, 1):
                    os._exit(0)  # the server has ended
            finally:
                self.masked = False
        if self.pending and threading.current_thread() is threading.main_thread():
            self.pending = False
            if self.busy:
                raise KeyboardInterrupt

    def run(self, code, env, count):
        self.count, self.writes = count, None
        self.randomness.check()
        saved = {k: os.environ.get(k) for k in env}
        os.environ.update(env)
        self.attempt(lambda: self.cell(code))
        self.attempt(self.show_figures)  # even if the cell has failed
        for k, v in saved.items():
            if v is None:
                os.environ.pop(k, None)
            else:
                os.environ[k] = v
        self.pending = False
        self.flush()
        if os.getpid() != self.pid:
            os._exit(0)  # a forked child has reached the end of the cell
        self.say(done=True)

    def attempt(self, do):
        """Call do and report its exception."""
        try:
            try:
                self.busy = True
                do()
            finally:
                self.busy = False
        except BaseException as e:
            self.fail(e)

    def cell(self, code):
        code = dedented(code)
        self.cells.append(code)
        name = "Cell In[%d]" % self.count
        magic = re.match(r"\s*%%(\w+)[ \t]*([^\n]*)\n?", code)
        if magic:
            return self.shell.run_cell_magic(magic[1], magic[2], code[magic.end():])
        try:
            tree = ast.parse(code, name)
        except SyntaxError as e:
            code = with_magics(code)
            try:
                tree = ast.parse(code, name)
            except SyntaxError:
                linecache.cache[name] = (len(code), None, code.splitlines(True), name)
                raise e.with_traceback(None) from None
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not silenced(code):
            last = ast.Expression(tree.body.pop().value)
        if tree.body:
            self.evaluate(tree, name, "exec")
        if last is not None:
            self.result(self.evaluate(last, name, "eval"))

    def evaluate(self, tree, name, mode):
        compiled = compile(tree, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if not compiled.co_flags & inspect.CO_COROUTINE:
            return eval(compiled, self.ns)
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(self.loop.create_task(eval(compiled, self.ns)))

    def result(self, value):
        if value is None:
            return
        self.ns.update(___=self.ns.get("__"), __=self.ns.get("_"), _=value)
        self.ns["_%d" % self.count] = self.values[self.count] = value
        self.publish(value, main=True)

    def display(self, *values, raw=False, **_):
        for value in values:
            if raw and isinstance(value, dict):
                self.emit(value, False)
            else:
                self.publish(value, main=False)

    def publish(self, value, main):
        own = method(value, "_ipython_display_")
        if own:
            return own()
        self.emit(bundle(value), main)

    def emit(self, data, main):
        if self.captured is not None:
            return self.captured.append(data)
        self.flush()
        self.say(ordered=True, item=dict(wire(data), type="result", is_main_result=main))

    def forget(self):
        """Remove all variables that code has defined."""
        for name in [n for n in self.ns if n not in self.first]:
            del self.ns[name]
        self.values.clear()

    def show_figures(self):
        plt = sys.modules.get("matplotlib.pyplot")
        numbers = plt.get_fignums() if hasattr(plt, "get_fignums") else []
        for number in numbers:
            self.publish(plt.figure(number), main=False)
        if numbers:
            plt.close("all")

    def fail(self, e):
        self.busy = False
        frames = e.__traceback__
        while frames and frames.tb_frame.f_code.co_filename == OWN:
            frames = frames.tb_next
        try:
            text = "".join(traceback.format_exception(type(e), e, frames))
        except Exception:
            text = ""
        try:
            value = str(e)
        except Exception:
            value = "<the exception cannot be converted to a string>"
        self.flush()
        if os.getpid() != self.pid:
            sys.stderr.write(text)
            return
        self.say(ordered=True, item={"type": "error", "name": type(e).__name__, "value": value, "traceback": text})


def dedented(code):
    """The code of a cell without the indentation of its first line."""
    margin = re.match(r"(?:[ \t]*\n)*([ \t]*)", code)[1]
    return re.sub("(?m)^" + margin, "", code) if margin else code


def silenced(code):
    """Whether the code ends with a semicolon, which suppresses the result."""
    return re.search(r";\s*(#[^\n]*)?\Z", code) is not None


MAGIC = re.compile(r"([ \t]*)((?:[\w., ]+=\s*)?)([!%])(.*)", re.S)


def with_magics(code):
    """The code with magics and shell commands replaced by Python calls."""
    lines = []
    for line in re.sub(r"(?m)^([ \t]*[!%].*?)\\\n", r"\1 ", code).split("\n"):
        m = MAGIC.match(line)
        if not m:
            lines.append(line)
        elif m[3] == "!":
            lines.append("%s%sget_ipython().%s(%r)" % (m[1], m[2], "getoutput" if m[2] else "system", m[4]))
        else:
            name, _, rest = m[4].partition(" ")
            lines.append("%s%sget_ipython().run_line_magic(%r, %r)" % (m[1], m[2], name, rest.strip()))
    return "\n".join(lines)


class UsageError(Exception):
    pass


class Captured:
    """The captured output and results of a cell."""

    def __init__(self, out, err, shown):
        self.stdout, self.stderr, self.outputs = out, err, shown

    def __str__(self):
        return self.stdout

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for data in self.outputs:
            display(data, raw=True)

    __call__ = show


class Shell:
    """The part of IPython's InteractiveShell that cells commonly use."""

    def __init__(self, kernel):
        self.kernel, self.user_ns = kernel, kernel.ns

    def expand(self, line):
        def value(m):
            try:
                return str(eval(m[1], self.user_ns))
            except Exception:
                return m[0]

        line = re.sub(r"\{([A-Za-z_][^{}]*)\}", value, line)
        return re.sub(r"\$([A-Za-z_]\w*)", lambda m: str(self.user_ns[m[1]]) if m[1] in self.user_ns else m[0], line)

    def system(self, line):
        self.kernel.flush()
        self.user_ns["_exit_code"] = subprocess.call(self.expand(line), shell=True, executable=shutil.which("bash"))

    def getoutput(self, line):
        self.kernel.flush()
        p = subprocess.run(self.expand(line), shell=True, executable=shutil.which("bash"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.user_ns["_exit_code"] = p.returncode
        return p.stdout.decode("utf-8", "replace").splitlines()

    def run_line_magic(self, name, line):
        if name in ("pip", "conda"):
            return self.system({"pip": "%s -m pip" % sys.executable, "conda": "conda"}[name] + " " + line)
        if name == "cd":
            os.chdir(os.path.expanduser(self.expand(line).strip("'\"") or "~"))
            return print(os.getcwd())
        if name == "pwd":
            return os.getcwd()
        if name in ("env", "set_env"):
            key, equals, value = self.expand(line).partition("=")
            if not equals:
                return os.environ.get(key.strip()) if key.strip() else dict(os.environ)
            os.environ[key.strip()] = value.strip()
            return print("env: %s=%s" % (key.strip(), value.strip()))
        if name == "time":
            began = time.perf_counter()
            value = self.kernel.evaluate(ast.parse(line, mode="eval"), "<time>", "eval")
            print("Wall time: %.3g s" % (time.perf_counter() - began))
            return value
        if name == "timeit":
            return self.timeit(line, "pass")
        if name == "run":
            path, *args = shlex.split(self.expand(line))
            old, sys.argv = sys.argv, [path, *args]
            try:
                with open(os.path.expanduser(path), "rb") as f:
                    exec(compile(f.read(), path, "exec"), self.user_ns)
            finally:
                sys.argv = old
            return None
        if name in ("who", "whos", "who_ls"):
            names = sorted(n for n, v in self.user_ns.items() if not n.startswith("_") and n not in ("In", "Out") and not isinstance(v, types.ModuleType))
            return names if name == "who_ls" else print("\t ".join(names) or "Interactive namespace is empty.")
        if name == "reset":
            return self.kernel.forget()
        if name in ("ls", "cat", "mkdir", "rmdir", "rm", "cp", "mv"):
            return self.system(name + " " + line)
        if name in ("matplotlib", "autoreload", "load_ext", "reload_ext", "config", "precision", "pylab"):
            return None
        raise UsageError("Line magic function `%%%s` not found." % name)

    def capture(self, line, cell):
        out, err, shown = io.StringIO(), io.StringIO(), []
        was, self.kernel.captured = self.kernel.captured, shown
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self.kernel.cell(cell)
                self.kernel.show_figures()
        finally:
            self.kernel.captured = was
            names = [word for word in line.split() if not word.startswith("-")]
            if names:
                self.user_ns[names[0]] = Captured(out.getvalue(), err.getvalue(), shown)

    def timeit(self, line, cell):
        """Time a line, or a cell with the line as its setup."""
        runs, rest = re.match(r"((?:-[nr]\s*\d+\s+)*)(.*)", line + " ", re.S).groups()
        given = {what: int(n) for what, n in re.findall(r"-([nr])\s*(\d+)", runs)}
        rest = rest.strip()
        statement, setup = (rest, "pass") if cell == "pass" else (cell, rest or "pass")
        timer = timeit.Timer(statement, setup, globals=self.user_ns)
        n = given.get("n") or timer.autorange()[0]
        took = [t / n for t in timer.repeat(given.get("r", 7), n)]
        mean = sum(took) / len(took)
        deviation = math.sqrt(sum((t - mean) ** 2 for t in took) / len(took))
        print("%s ± %s per loop (mean ± std. dev. of %d runs, %s loops each)" % (seconds(mean), seconds(deviation), len(took), format(n, ",")))

    def run_cell_magic(self, name, line, cell):
        if name in ("bash", "sh"):
            self.kernel.flush()
            code = subprocess.call([name, "-c", cell])
            if code:
                raise subprocess.CalledProcessError(code, name)
        elif name == "time":
            began = time.perf_counter()
            self.kernel.cell(cell)
            print("Wall time: %.3g s" % (time.perf_counter() - began))
        elif name == "capture":
            self.capture(line, cell)
        elif name == "timeit":
            self.timeit(line, cell)
        elif name in ("python", "python3"):
            self.kernel.flush()
            subprocess.run([sys.executable, "-c", cell], check=True)
        elif name == "writefile":
            add, _, path = ("-a", "", line.strip()[2:].strip()) if line.startswith("-a ") else ("", "", line.strip())
            path = os.path.expanduser(path.strip("'\""))
            print(("Appending to " if add else "Overwriting " if os.path.exists(path) else "Writing ") + path)
            with open(path, "a" if add else "w") as f:
                f.write(cell)
        elif name in TEXTS:
            self.kernel.display(TEXTS[name](cell))
        else:
            raise UsageError("Cell magic `%%%%%s` not found." % name)


def spec_with(change, name, path, target):
    """Return the spec of a module; change(module) is called once the module is loaded."""
    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec and spec.loader and hasattr(spec.loader, "exec_module"):
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            change(module)

        spec.loader.exec_module = exec_module
    return spec


def branch():
    """A value that differs in every branch of the sandbox: its host name and its notice.

    The host name, by default the jail's id, is set before the processes run. The notice
    contains a seed and is written before a client can access the branch.
    """
    name = os.uname().nodename
    try:
        with open("/run/glasshouse/branch.json", "rb") as f:
            return name, f.read()
    except OSError:
        return name, b""


class Randomness:
    """Reseeds the global generators of random, numpy.random and OpenSSL in a branch.

    Otherwise they would have the same state in all branches of a snapshot. A generator that
    code has seeded with a value, or whose state code has set, is not changed.
    """

    MODULES = ("random", "numpy.random")

    def __init__(self):
        self.branch = branch()
        self.seeded = set()  # names of modules
        if "random" in sys.modules:
            self.watch(sys.modules["random"])

    def check(self):
        now = branch()
        if now == self.branch:
            return
        self.branch = now
        for name in self.MODULES:
            module = sys.modules.get(name)
            if module and name not in self.seeded and hasattr(module, "seed"):
                module.seed()
        ssl = sys.modules.get("ssl")
        if hasattr(ssl, "RAND_add"):
            ssl.RAND_add(os.urandom(32), 32)  # OpenSSL mixes this with entropy of its own

    def watch(self, module):
        """Record whether code seeds the global generator of a module."""
        name = module.__name__

        def noting(function):
            @functools.wraps(function)
            def seed(*args, **kw):
                got = function(*args, **kw)
                if any(v is not None for v in (*args, *kw.values())):
                    self.seeded.add(name)
                else:
                    self.seeded.discard(name)
                return got

            return seed

        for what in ("seed", "setstate", "set_state"):
            if hasattr(module, what):
                setattr(module, what, noting(getattr(module, what)))

    def find_spec(self, name, path=None, target=None):
        if name not in self.MODULES:
            return None
        return spec_with(self.watch, name, path, target)


class Pictures:
    """Makes matplotlib and PIL display figures and images as results."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.changes = {"matplotlib.pyplot": self.pyplot, "matplotlib.figure": self.figure, "PIL.ImageShow": self.image_show, "PIL.Image": self.image}

    def find_spec(self, name, path=None, target=None):
        if name not in self.changes:
            return None
        return spec_with(self.changes[name], name, path, target)

    def pyplot(self, module):
        def show(*_, **__):  # a function, because matplotlib sets its __signature__
            self.kernel.show_figures()

        module.show = show

    def figure(self, module):
        module.Figure.show = lambda figure, warn=True: self.kernel.display(figure)

    def image_show(self, module):
        module.show = lambda image, title=None, **_: self.kernel.display(image) is None

    def image(self, module):
        write = module.Image.save

        def save(image, fp, format=None, **params):
            """Display an image that is saved to a named file, as E2B's interpreter does."""
            if isinstance(fp, str) and not sys._getframe(1).f_globals.get("__name__", "").startswith("matplotlib"):
                self.kernel.display(image)
            return write(image, fp, format, **params)

        module.Image.save = save


class Notebook:
    """Provides the imports of IPython that cells commonly use if IPython is not installed."""

    def __init__(self, kernel):
        self.kernel = kernel

    def find_spec(self, name, path=None, target=None):
        if name in ("IPython", "IPython.display", "IPython.core", "IPython.core.display"):
            return importlib.machinery.ModuleSpec(name, self, is_package=name in ("IPython", "IPython.core"))
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.display = self.kernel.display
        module.get_ipython = builtins.get_ipython
        module.clear_output = lambda *_, **__: None
        for kind in KINDS:
            setattr(module, kind.__name__, kind)


class Shown:
    """A value of one MIME type, from text or bytes, a file or a URL."""

    kinds = ()
    binary = False

    def __init__(self, data=None, url=None, filename=None, **_):
        if data is not None and isinstance(data, (str, os.PathLike)) and self.binary:
            url, filename, data = (data, None, None) if re.match("https?:", str(data)) else (None, data, None)
        if filename is not None:
            with open(filename, "rb") as f:
                data = f.read()
        elif data is None and url is not None:
            import urllib.request

            with urllib.request.urlopen(url) as f:
                data = f.read()
        if not self.binary and isinstance(data, bytes):
            data = data.decode("utf-8")
        self.data = data

    def __repr__(self):
        return "<IPython.core.display.%s object>" % type(self).__name__

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {kind: self.data for kind in self.kinds}


class HTML(Shown):
    kinds = ("text/html",)


class Markdown(Shown):
    kinds = ("text/markdown",)


class Latex(Shown):
    kinds = ("text/latex",)


class Math(Latex):
    def __init__(self, data=None, **more):
        super().__init__("$\\displaystyle %s$" % str(data).strip("$"), **more)


class SVG(Shown):
    kinds = ("image/svg+xml",)


class Javascript(Shown):
    kinds = ("application/javascript",)


class JSON(Shown):
    kinds = ("application/json",)

    def __init__(self, data=None, **more):
        super().__init__(json.loads(data) if isinstance(data, str) else data, **more)


class Pretty(Shown):
    kinds = ("text/plain",)


class Image(Shown):
    binary = True

    def _repr_mimebundle_(self, include=None, exclude=None):
        kind = "image/jpeg" if self.data[:2] == b"\xff\xd8" else "image/gif" if self.data[:3] == b"GIF" else "image/png"
        return {kind: self.data}


TEXTS = {"html": HTML, "markdown": Markdown, "latex": Latex, "svg": SVG, "javascript": Javascript, "js": Javascript}
KINDS = (HTML, Markdown, Latex, Math, SVG, Javascript, JSON, Pretty, Image)


# --- representations of values ----------------------------------------------------

def seconds(t):
    for unit, size in (("s", 1), ("ms", 1e-3), ("μs", 1e-6)):
        if t >= size:
            return "%.3g %s" % (t / size, unit)
    return "%.3g ns" % (t / 1e-9)


METHODS = {
    "text/html": "_repr_html_", "text/markdown": "_repr_markdown_", "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_", "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_", "application/json": "_repr_json_", "application/javascript": "_repr_javascript_",
    "e2b/data": "_repr_e2b_data_", "e2b/chart": "_repr_e2b_chart_",
}


def method(value, name):
    """A method of a value, or None. Some objects return something for every attribute; the
    canary, which IPython uses too, detects them."""
    if isinstance(value, type):
        return None
    try:
        if callable(getattr(value, "_ipython_canary_method_should_not_exist_", None)):
            return None
        found = getattr(value, name, None)
    except Exception:
        return None
    return found if callable(found) else None


def asked(f, *args, **kw):
    """The result of a representation method. Its exceptions are printed."""
    try:
        got = f(*args, **kw)
    except NotImplementedError:
        return None
    except Exception:
        traceback.print_exc()
        return None
    return got[0] if isinstance(got, tuple) and len(got) == 2 else got


def bundle(value):
    """All representations of a value, by MIME type."""
    data = {"text/plain": pretty(value)}
    for kind, name in METHODS.items():
        f = method(value, name)
        got = asked(f) if f else None
        if got is not None:
            data[kind] = got
    if is_a(value, "matplotlib", "Figure"):
        png = io.BytesIO()
        if "image/png" not in data and asked(lambda: value.savefig(png, format="png", bbox_inches="tight") or True):
            data["image/png"] = png.getvalue()
        try:
            data["e2b/chart"] = chart_of(value)
        except Exception:
            pass  # an unsupported figure: the image is sufficient
    if is_a(value, "pandas", "DataFrame"):
        data["e2b/data"] = asked(value.to_dict, orient="list")
    if type(value) in (list, dict):
        try:
            data["application/json"] = plain(value, strict=True)
        except (TypeError, RecursionError):
            pass  # the value contains something that JSON cannot represent
    f = method(value, "_repr_mimebundle_")
    more = asked(f, include=None, exclude=None) if f else None
    if isinstance(more, dict):
        data.update(more)
    return data


FIELDS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}


def wire(data):
    """The representations of a value in the protocol's format."""
    item, extra = {}, {}
    for kind, got in data.items():
        if got is None:
            continue
        if isinstance(got, (bytes, bytearray)):
            got = base64.b64encode(got).decode()
        if kind == "text/plain" and len(got) > 1 and got[0] == got[-1] == "'":
            got = got[1:-1]
        got = got if isinstance(got, str) else plain(got)
        if kind in FIELDS:
            item[FIELDS[kind]] = got
        else:
            extra[str(kind)] = got
    if extra:
        item["extra"] = extra
    return item


def plain(v, depth=0, strict=False):
    """A value that JSON can represent. NaN and infinities become None. Other values become
    strings, or a TypeError if strict is set."""
    if v is None or isinstance(v, (str, bool, int)):
        return v
    if isinstance(v, float):
        return v if math.isfinite(v) else None
    if depth < 100 and isinstance(v, dict):
        return {str(k): plain(x, depth + 1, strict) for k, x in v.items()}
    if depth < 100 and isinstance(v, (list, tuple)):
        return [plain(x, depth + 1, strict) for x in v]
    if hasattr(v, "item") and not hasattr(v, "__len__"):
        try:
            return plain(v.item(), 100, strict)
        except Exception:
            pass
    if isinstance(v, (datetime.date, datetime.time)):
        return v.isoformat()
    if strict:
        raise TypeError
    return v.isoformat() if hasattr(v, "isoformat") else str(v)


WIDTH, MOST = 79, 1000


def pretty(v):
    """A value as text: on one line if it fits, else with one line per element."""
    try:
        return laid_out(v, 0, ())
    except Exception:
        try:
            return repr(v)
        except Exception as e:
            return "<%s that cannot be shown: %s>" % (type(v).__name__, type(e).__name__)


BRACKETS = {list: "[]", tuple: "()", set: "{}", frozenset: ("frozenset({", "})"), dict: "{}"}


def laid_out(v, indent, above):
    kind = type(v)
    if kind not in BRACKETS or kind.__repr__ not in (list.__repr__, tuple.__repr__, set.__repr__, frozenset.__repr__, dict.__repr__):
        return repr(v)
    if not v or id(v) in above:
        return repr(v) if not v else "<recursion>"
    if len(v) <= MOST:
        text = repr(v)
        if indent + len(text) <= WIDTH and "\n" not in text and kind not in (set, frozenset):
            return text
    first, last = BRACKETS[kind]
    at, above = indent + len(first), above + (id(v),)
    values = list(v.items() if kind is dict else v)
    if kind in (set, frozenset):
        try:
            values.sort()
        except Exception:
            pass
    parts = []
    for x in values[:MOST]:
        if kind is dict:
            key = repr(x[0]) + ": "
            parts.append(key + laid_out(x[1], at + len(key), above))
        else:
            parts.append(laid_out(x, at, above))
    if len(values) > MOST:
        parts.append("...")
    flat = ", ".join(parts)
    if indent + len(first + flat + last) > WIDTH or "\n" in flat:
        flat = (",\n" + " " * at).join(parts)
    return first + flat + ("," if kind is tuple and len(v) == 1 else "") + last


if __name__ == "__interpreter__":
    if ROLE[0] == "serve":
        serve(int(ROLE[1]))
    else:
        Kernel(*map(int, ROLE[1:])).start()
