// Resolves names below localhost to this host, as browsers and systemd-resolved do and
// plain glibc does not (RFC 6761, section 6.3).
import dns from 'node:dns'

const { lookup } = dns
dns.lookup = (host, options, done) => {
  if (!host.endsWith('.localhost')) return lookup(host, options, done)
  return typeof options === 'function' ? lookup('127.0.0.1', options) : lookup('127.0.0.1', options, done)
}
