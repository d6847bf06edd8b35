package eventlog

import (
	"cmp"
	"slices"
	"time"
)

// retain drops closed segments that are older than the policy keeps, and the
// oldest of those that are more than it keeps, and says so in the log.
func (l *Log) retain() {
	p := l.cfg.Policy
	if p.KeepMB == 0 && p.KeepAge == 0 {
		return
	}
	var closed []*segment
	for _, s := range l.list() {
		select {
		case <-l.quit:
			return
		default:
		}
		if l.isClosed(s) && l.learn(s) == nil {
			closed = append(closed, s)
		}
	}
	type kept struct {
		*segment
		span span
		size int64
	}
	var all []kept
	var total int64
	l.disk.Lock()
	for _, s := range closed {
		k := kept{s, s.covers(), s.size}
		if !s.packed && !p.Plain {
			k.size /= 8 // about what it will be when its turn has come
		}
		total += k.size
		all = append(all, k)
	}
	l.disk.Unlock()
	slices.SortFunc(all, func(a, b kept) int { return cmp.Compare(a.span.last, b.span.last) })

	now := time.Now()
	var next time.Time // when the oldest that stays is to go
	for _, k := range all {
		end := time.UnixMilli(k.span.maxTS).Add(p.KeepAge)
		old := p.KeepAge > 0 && !end.After(now)
		if !old && (p.KeepMB == 0 || total <= int64(p.KeepMB)<<20) {
			if next.IsZero() || end.Before(next) {
				next = end
			}
			continue
		}
		if gap, ok := l.drop(k.segment); ok {
			l.say(&gap)
		}
		total -= k.size
	}
	if p.KeepAge > 0 && !next.IsZero() {
		l.expireAt(next)
	}
}

func (l *Log) isClosed(s *segment) bool {
	l.disk.Lock()
	defer l.disk.Unlock()
	return s.closed && !s.gone
}

// expireAt has retention looked at again when a segment has grown too old,
// which happens to a log that nobody writes as well.
func (l *Log) expireAt(t time.Time) {
	l.disk.Lock()
	defer l.disk.Unlock()
	select {
	case <-l.quit:
		return
	default:
	}
	d := time.Until(t) + time.Millisecond
	if l.expire == nil {
		l.expire = time.AfterFunc(d, func() { packing.add(l, nil) })
		return
	}
	l.expire.Reset(d)
}
