// The capability that the contract tests call: it does what its input says, {"do": …}.
// It needs no library. As a command and as a handler, with Debian's clang and lld:
//
//   clang --target=wasm32 -O2 -ffreestanding -nostdlib -c probe.c -o probe.o
//   wasm-ld --no-entry --export=_start --strip-all probe.o -o command.wasm
//
//   clang --target=wasm32 -O2 -ffreestanding -nostdlib -DHANDLER -c probe.c -o probe.o
//   wasm-ld --no-entry --export=_initialize --export=glasshouse_alloc --export=glasshouse_handle --strip-all probe.o -o handler.wasm
#include "sys.h"

#define HOST(name) __attribute__((import_module("glasshouse"), import_name(#name)))
HOST(call) u32 host_call(const char *question, u32 len);
HOST(fetch) u32 host_fetch(const char *question, u32 len);
HOST(answer) u32 host_answer(char *buf, u32 len);

static char in[1 << 16], out[1 << 16];
static u32 in_len, out_len;
static u32 calls; // in this instance

void *memset(void *p, int c, unsigned long n) { for (char *q = p; n--;) *q++ = c; return p; }
void *memcpy(void *d, const void *s, unsigned long n) { char *a = d; for (const char *b = s; n--;) *a++ = *b++; return d; }
static u32 length(const char *s) { u32 n = 0; while (s[n]) n++; return n; }
static void put(const char *s, u32 n) { for (u32 i = 0; i < n && out_len < sizeof out; i++) out[out_len++] = s[i]; }
static void say(const char *s) { put(s, length(s)); }

static void number(u32 n) {
  char digits[10];
  u32 i = 0;
  do { digits[i++] = '0' + n % 10; n /= 10; } while (n);
  while (i--) put(&digits[i], 1);
}

// find returns what stands behind a text in the input, or 0.
static const char *find(const char *what) {
  u32 n = length(what);
  for (u32 i = 0; i + n <= in_len; i++) {
    u32 j = 0;
    while (j < n && in[i + j] == what[j]) j++;
    if (j == n) return in + i + n;
  }
  return 0;
}

static int is(const char *s) {
  const char *p = find("\"do\":\"");
  if (!p) return 0;
  while (*s && *p == *s) p++, s++;
  return !*s && *p == '"';
}

static u32 argument(const char *name) {
  const char *p = find(name);
  u32 n = 0;
  while (p && *p >= '0' && *p <= '9') n = n * 10 + (u32)(*p++ - '0');
  return n;
}

static u32 write_all(u32 fd, const char *s, u32 n) {
  while (n) {
    iovec v = {s, n};
    u32 done = 0, e = fd_write(fd, &v, 1, &done);
    if (e) return e;
    s += done, n -= done;
  }
  return 0;
}

static void complain(const char *s) { write_all(2, s, length(s)); }

// count answers {"count": n}.
static void count(u32 n) { say("{\"count\":"); number(n); say("}"); }
static void failed(u32 e) { say("{\"errno\":"); number(e); say("}"); }

// note makes a file one byte longer, and answers how long it is.
static void note(void) {
  u32 fd, e = path_open(3, 0, "note", 4, 1, 1 << 6 | 1 << 1, 0, 1, &fd);
  filestat st;
  if (e) return failed(e);
  write_all(fd, "x", 1);
  fd_filestat_get(fd, &st);
  fd_close(fd);
  count((u32)st.size);
}

// fill writes megabytes into a file, and ends if it may not.
static void fill(u32 megabytes) {
  static char chunk[1 << 16];
  u32 fd, e = path_open(3, 0, "big", 3, 1, 1 << 6, 0, 0, &fd);
  for (u32 i = 0; !e && i < 16 * megabytes; i++) e = write_all(fd, chunk, sizeof chunk);
  if (e) { complain("no room\n"); proc_exit(4); }
  count(megabytes);
}

// touch tries to write the file of a mount.
static void touch(void) {
  u32 fd, e = path_open(4, 0, "file", 4, 0, 1 << 6, 0, 0, &fd);
  if (!e) e = write_all(fd, "x", 1);
  failed(e);
}

static void ask(u32 len) {
  if (len > sizeof out - out_len) len = sizeof out - out_len;
  out_len += host_answer(out + out_len, len);
}

static void eat(void) {
  for (;;) {
    i64 at = (i64)__builtin_wasm_memory_grow(0, 16) << 16;
    if (at < 0) { complain("out of memory\n"); __builtin_trap(); }
    for (u32 i = 0; i < 16; i++) *(volatile char *)(u32)(at + (i << 16)) = 1;
  }
}

static void wait(void) {
  subscription s = {0};
  event e;
  u32 n;
  s.u.clock.id = 1;
  s.u.clock.timeout = 3600000000000ull;
  poll_oneoff(&s, &e, 1, &n);
}

static volatile u32 forever = 1;

// serve answers a question that is in in, all but how it is answered.
static void serve(void) {
  const char *p;
  calls++;
  if (is("fill")) fill(argument("\"n\":"));
  else if (is("note")) note();
  else if (is("remember")) count(calls);
  else if (is("touch")) touch();
  else if (is("eat")) eat();
  else if (is("wait")) wait();
  else if (is("trap")) __builtin_trap();
  else if (is("spin")) { while (forever) ; }
  else if (is("exit")) proc_exit(argument("\"n\":"));
  else if (is("look")) {
    u32 n = 0, size;
    for (prestat st; !fd_prestat_get(3 + n, &st);) n++;
    args_sizes_get(&size, &size);
    count(n);
  }
  else if (is("call")) ask(host_call("{\"id\":\"test.other\",\"input\":{\"x\":1}}", 35));
  else if (is("fetch")) {
    static char question[1024];
    u32 n = 0;
    p = find("\"url\":\"");
    for (const char *s = "{\"url\":\""; *s;) question[n++] = *s++;
    while (p && *p != '"' && n < 1000) question[n++] = *p++;
    for (const char *s = "\",\"headers\":{\"X-Test\":\"1\"}}"; *s;) question[n++] = *s++;
    ask(host_fetch(question, n));
  }
  else count(0);
}

#ifdef HANDLER

void _initialize(void) { calls = 0; }

char *glasshouse_alloc(u32 len) { return len <= sizeof in ? in : (char *)-1; }

u64 glasshouse_handle(char *at, u32 len) {
  in_len = len;
  out_len = 0;
  if (is("fail")) say("{\"status\":500,\"body\":\"on purpose\"}");
  else if (is("garble")) say("{\"status\":");
  else if (is("silent")) ;
  else if (is("flood")) return 1 << 30;
  else {
    say("{\"status\":200,\"body\":");
    if (is("echo")) {
      const char *body = find("\"body\":");
      put(body, (u32)(in + len - 1 - body));
    } else serve();
    say("}");
  }
  return (u64)(u32)out << 32 | out_len;
}

#else

void _start(void) {
  for (u32 done = 1; done && in_len < sizeof in;) {
    iovec v = {in + in_len, sizeof in - in_len};
    if (fd_read(0, &v, 1, &done)) break;
    in_len += done;
  }
  if (is("fail")) { complain("on purpose\n"); proc_exit(3); }
  else if (is("garble")) say("{\"count\":");
  else if (is("silent")) return;
  else if (is("flood")) { while (!write_all(1, in, sizeof in)) ; }
  else if (is("echo")) put(in, in_len);
  else serve();
  write_all(1, out, out_len);
}

#endif
