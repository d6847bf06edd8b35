package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A vsock is the device by which clients of the host reach the guest (docs/vsock.md of Firecracker). The lock
// also stands for that of the device.
type vsock struct {
	c vsockDevice
	l net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	device  *device
	out     []packet // for the guest
	conns   map[ports]*conn
	last    uint32 // port of the host
}

type ports struct{ host, guest uint32 }

// A conn is a connection between a client and the guest.
type conn struct {
	v     *vsock
	ports ports
	c     net.Conn
	open  chan bool // whether the guest has accepted; nil after it has answered, or if the guest connects

	credit              uint32 // bytes that the guest can receive at once
	sent, received      uint32 // bytes to the guest, and those that it has processed
	taken, acknowledged uint32 // bytes of the guest that were processed, and what it knows about that
	buffer              []byte // of the guest
	ending, gone        bool   // no more bytes from the guest; closed
}

// A packet is a header (struct virtio_vsock_hdr in linux/virtio_vsock.h) and data.
type packet struct {
	from, to       uint64
	source, target uint32
	op             uint16
	flags          uint32
	credit, taken  uint32
	data           []byte
}

const (
	headerSize = 44
	stream     = 1
	hostCID    = 2
	bufferSize = 256 << 10 // for bytes of the guest
	mostData   = 3 << 10   // in a packet; buffers of the guest have 4 KiB

	opRequest, opResponse, opReset, opShutdown, opData, opCredit, opAskCredit = 1, 2, 3, 4, 5, 6, 7

	shutReceive, shutSend = 1, 2
)

func newVsock(c vsockDevice) (*vsock, error) {
	l, err := net.Listen("unix", c.Path)
	if err != nil {
		return nil, err
	}
	v := &vsock{c: c, l: l, conns: map[ports]*conn{}, last: 1 << 30}
	v.changed = sync.NewCond(&v.mu)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go v.serve(c)
		}
	}()
	go v.pump()
	return v, nil
}

// requestTime is how long Firecracker waits for the answer of the guest to a request for a connection.
const requestTime = 2 * time.Second

// serve connects a client to a port of the guest.
func (v *vsock) serve(c net.Conn) {
	in := bufio.NewReaderSize(c, 64)
	line, err := in.ReadSlice('\n')
	var port uint32
	if err == nil {
		_, err = fmt.Sscanf(string(line), "CONNECT %d\n", &port)
	}
	if err != nil {
		c.Close()
		return
	}
	v.mu.Lock()
	v.last++
	n := &conn{v: v, ports: ports{v.last, port}, c: c, open: make(chan bool, 1)}
	v.conns[n.ports] = n
	opened := n.open
	v.send(n.packet(opRequest))
	v.mu.Unlock()
	timer := time.AfterFunc(requestTime, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if n.open != nil {
			v.send(n.packet(opReset))
			n.close()
		}
	})
	accepted := <-opened
	timer.Stop()
	if !accepted {
		return
	}
	if _, err := fmt.Fprintf(c, "OK %d\n", n.ports.host); err == nil {
		go n.write()
		n.read(in)
	}
}

func (n *conn) packet(op uint16) packet {
	n.acknowledged = n.taken
	return packet{from: hostCID, to: uint64(n.v.c.CID), source: n.ports.host, target: n.ports.guest, op: op, credit: bufferSize, taken: n.taken}
}

// send queues a packet for the guest.
func (v *vsock) send(p packet) {
	v.out = append(v.out, p)
	v.changed.Broadcast()
}

// wake lets everything that waits look again.
func (v *vsock) wake() { v.changed.Broadcast() }

// close ends a connection.
func (n *conn) close() {
	if n.gone {
		return
	}
	n.gone = true
	delete(n.v.conns, n.ports)
	if n.open != nil {
		n.open <- false
		n.open = nil
	}
	n.c.Close()
	n.v.wake()
}

// reset closes all connections. The guest learns it when it runs.
func (v *vsock) reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, n := range v.conns {
		v.send(n.packet(opReset))
		n.close()
	}
}

// read sends what the client sends, as long as the guest has room.
func (n *conn) read(in io.Reader) {
	v, data := n.v, make([]byte, mostData)
	for {
		v.mu.Lock()
		for !n.gone && n.credit-(n.sent-n.received) == 0 {
			v.changed.Wait()
		}
		free := n.credit - (n.sent - n.received)
		v.mu.Unlock()
		if free == 0 { // closed
			return
		}
		k, err := in.Read(data[:min(free, mostData)])
		v.mu.Lock()
		if n.gone {
			v.mu.Unlock()
			return
		}
		if k > 0 {
			p := n.packet(opData)
			p.data = append([]byte(nil), data[:k]...)
			n.sent += uint32(k)
			v.send(p)
		}
		if err != nil { // Firecracker knows no connections that are closed in one direction
			p := n.packet(opShutdown)
			p.flags = shutReceive | shutSend
			v.send(p)
		}
		v.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// write writes what the guest has sent to the client.
func (n *conn) write() {
	v := n.v
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		for !n.gone && !n.ending && len(n.buffer) == 0 {
			v.changed.Wait()
		}
		if n.gone {
			return
		}
		data := n.buffer
		n.buffer = nil
		if len(data) == 0 { // ending
			v.send(n.packet(opReset))
			n.close()
			return
		}
		v.mu.Unlock()
		_, err := n.c.Write(data)
		v.mu.Lock()
		n.taken += uint32(len(data))
		if err != nil && !n.gone {
			v.send(n.packet(opReset))
			n.close()
			return
		}
		if n.taken-n.acknowledged > bufferSize/2 && !n.gone {
			v.send(n.packet(opCredit))
		}
	}
}

// handle handles a packet of the guest.
func (v *vsock) handle(p packet) {
	key := ports{p.target, p.source}
	n := v.conns[key]
	if p.op == opRequest && n == nil {
		v.accept(key, p)
		return
	}
	if n == nil {
		if p.op != opReset {
			v.send((&conn{v: v, ports: key}).packet(opReset))
		}
		return
	}
	n.credit, n.received = p.credit, p.taken
	v.wake()
	switch p.op {
	case opResponse:
		if n.open != nil {
			n.open <- true
			n.open = nil
		}
	case opReset:
		n.close()
	case opShutdown:
		n.ending = n.ending || p.flags&shutSend != 0
	case opData:
		if len(n.buffer)+len(p.data) > bufferSize {
			fmt.Println("fcshim: vsock: the guest has sent more than it may")
			v.send(n.packet(opReset))
			n.close()
			return
		}
		n.buffer = append(n.buffer, p.data...)
	case opAskCredit:
		v.send(n.packet(opCredit))
	}
}

// accept connects the guest to a socket of the host.
func (v *vsock) accept(key ports, p packet) {
	n := &conn{v: v, ports: key, credit: p.credit}
	c, err := net.Dial("unix", fmt.Sprintf("%s_%d", v.c.Path, key.host))
	if err != nil {
		v.send(n.packet(opReset))
		return
	}
	n.c = c
	v.conns[key] = n
	v.send(n.packet(opResponse))
	go n.write()
	go n.read(c)
}

// awaitKicks waits for the notifications of a queue.
func (v *vsock) awaitKicks(f *os.File) {
	for b := make([]byte, 8); ; {
		if _, err := f.Read(b); err != nil {
			return
		}
		v.mu.Lock()
		v.wake()
		v.mu.Unlock()
	}
}

// pump moves packets between the queues and the connections.
func (v *vsock) pump() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		if d := v.device; d == nil || !v.receive(d) && !v.deliver(d) {
			v.changed.Wait()
		}
	}
}

// deliver writes a packet to a buffer of the guest.
func (v *vsock) deliver(d *device) bool {
	if len(v.out) == 0 {
		return false
	}
	chain, done, ok := d.take(&d.queues[0])
	if !ok {
		return false
	}
	p := v.out[0]
	v.out = v.out[1:]
	b := make([]byte, headerSize, headerSize+len(p.data))
	binary.LittleEndian.PutUint64(b, p.from)
	binary.LittleEndian.PutUint64(b[8:], p.to)
	for n, value := range []uint32{p.source, p.target, uint32(len(p.data)), stream | uint32(p.op)<<16, p.flags, p.credit, p.taken} {
		binary.LittleEndian.PutUint32(b[16+4*n:], value)
	}
	b = append(b, p.data...)
	written := 0
	for _, part := range chain {
		if part.writable {
			written += copy(part.data, b[written:])
		}
	}
	done(written)
	if written < len(b) {
		fmt.Println("fcshim: vsock: a buffer of the guest is too small")
	}
	return true
}

// receive handles a packet of the guest.
func (v *vsock) receive(d *device) bool {
	chain, done, ok := d.take(&d.queues[1])
	if !ok {
		return false
	}
	var b []byte
	for _, part := range chain {
		if !part.writable {
			b = append(b, part.data...)
		}
	}
	done(0)
	if len(b) < headerSize {
		return true
	}
	number := func(n int) uint32 { return binary.LittleEndian.Uint32(b[16+4*n:]) }
	v.handle(packet{
		source: number(0), target: number(1), op: uint16(number(3) >> 16), flags: number(4), credit: number(5), taken: number(6),
		data: b[headerSize:min(len(b), headerSize+int(number(2)))],
	})
	return true
}
