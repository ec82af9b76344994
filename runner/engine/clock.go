package engine

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"syscall"
	"time"
)

// clockConn is a connection with a clock: it notes when the first byte is about
// to be written and when bytes arrive. Arrivals are read and timed by a goroutine
// of their own, which does nothing else, so that parsing enters no time. They are
// handed on in batches: what reads them is woken rarely, since waking costs more
// than reading. It stops at a number of bytes read, and at a deadline: what
// arrived before that is read first, however late.
//
// Write, Read and the fields above mu belong to one goroutine.
type clockConn struct {
	net.Conn
	first    time.Time // of writing
	last     time.Time // arrival of the bytes that Read returned last
	deadline time.Time // of Read; the zero time is none
	room     int64     // bytes that Read may still return
	ended    error     // of Read

	queue []arrival // taken over, not yet read
	next  int
	rest  []byte // of the arrival before next
	block []byte // that rest is part of
	calm  bool   // nothing has come for a while: take the next arrival at once
	timer *time.Timer

	mu      sync.Mutex
	arrived []arrival
	held    int // bytes that arrived takes
	enough  int // bytes at which the reader wants to be woken
	err     error

	free    chan []byte   // blocks to read into again
	wake    chan struct{} // arrived holds enough, or the connection has ended
	taken   chan struct{} // arrived was emptied
	closing chan struct{}
	close   func() error
}

// arrival is what one read of the socket gave.
type arrival struct {
	bytes []byte
	at    time.Duration // after epoch
	fresh bool          // the first of a block: bytes has the whole of it as capacity
}

// epoch is what arrivals are timed from, by the monotonic clock.
var epoch = time.Now()

// How arrivals are handed on.
const (
	batch   = 32 << 10              // bytes that are worth waking a reader for
	linger  = 50 * time.Millisecond // what is less waits so long
	backlog = 64 << 20              // bytes that may wait to be parsed before the server is made to wait
	each    = 48                    // bytes that an arrival takes beside its own
)

// Blocks that arrivals are read into, bytes: the first is as small as most
// answers, each is four times the one before.
const (
	firstBlock = 4 << 10
	lastBlock  = 64 << 10
	leastRead  = 1 << 10
)

var errTooMuch = errors.New("the answer is longer than the limit of the client")

func newClockConn(conn net.Conn) *clockConn {
	c := &clockConn{Conn: conn, room: maxHeader, calm: true, enough: math.MaxInt,
		free: make(chan []byte, 2), wake: make(chan struct{}, 1), taken: make(chan struct{}, 1), closing: make(chan struct{})}
	c.close = sync.OnceValue(func() error {
		close(c.closing)
		return conn.Close()
	})
	go c.listen()
	return c
}

// listen reads the socket until it ends.
func (c *clockConn) listen() {
	var block []byte
	var flood flood
	for size := firstBlock; ; {
		if cap(block)-len(block) < leastRead {
			select {
			case block = <-c.free:
			default:
				block = make([]byte, 0, size)
				size = min(4*size, lastBlock)
			}
		}
		n, err := c.Conn.Read(block[len(block):cap(block)])
		at := time.Since(epoch)
		end := len(block) + n
		if !c.keep(arrival{block[len(block):end], at, len(block) == 0}, err) {
			return
		}
		block = block[:end]
		flood.arrived(at)
	}
}

// A stream whose arrivals are closer than floodGap, so many in a row, is a flood:
// no model that is known decodes a single answer at 20,000 steps a second, and a
// server's last events of an answer are fewer.
const (
	floodGap   = 50 * time.Microsecond
	floodReads = 32
	floodPause = 200 * time.Microsecond
)

// flood lets a flood gather for floodPause between reads, since a read of its own
// for each event costs several times the event: the time of an arrival is then
// late by at most that and what the machine adds to a sleep.
type flood struct {
	since time.Duration // when the next arrival could first have been read
	reads int           // in a row that did not have to wait
}

func (f *flood) arrived(at time.Duration) {
	if at-f.since >= floodGap {
		f.reads = 0
	}
	if f.reads++; f.reads < floodReads {
		f.since = at
		return
	}
	pause := syscall.NsecToTimespec(int64(floodPause)) // time.Sleep takes a millisecond
	syscall.Nanosleep(&pause, nil)
	f.since = time.Since(epoch)
}

// keep adds an arrival and tells whether there may be more.
func (c *clockConn) keep(a arrival, err error) bool {
	c.mu.Lock()
	if len(a.bytes) > 0 {
		c.arrived = append(c.arrived, a)
		c.held += len(a.bytes) + each
	}
	c.err = err
	wake, full := c.held >= c.enough || err != nil, c.held >= backlog
	c.mu.Unlock()
	if wake {
		signal(c.wake)
	}
	for full && err == nil {
		select {
		case <-c.taken:
		case <-c.closing:
			return false
		}
		c.mu.Lock()
		full = c.held >= backlog
		c.mu.Unlock()
	}
	return err == nil
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Close may be called at any time, more than once and by any goroutine.
func (c *clockConn) Close() error { return c.close() }

func (c *clockConn) Write(p []byte) (int, error) {
	if c.first.IsZero() {
		c.first = time.Now()
	}
	return c.Conn.Write(p)
}

// Read returns bytes of one arrival, whose time is then in last.
func (c *clockConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 && c.ended == nil {
		if c.next == len(c.queue) {
			c.ended = c.fetch()
			continue
		}
		a := c.queue[c.next]
		at := epoch.Add(a.at)
		if !c.deadline.IsZero() && at.After(c.deadline) {
			c.ended = context.DeadlineExceeded
			break
		}
		c.next++
		if a.fresh { // all of the block before has been copied
			if cap(c.block) == lastBlock {
				select {
				case c.free <- c.block:
				default:
				}
			}
			c.block = a.bytes[:0]
		}
		c.rest, c.last = a.bytes, at
	}
	if len(c.rest) == 0 {
		return 0, c.ended
	}
	if c.room <= 0 {
		c.rest, c.ended = nil, errTooMuch
		return 0, c.ended
	}
	n := copy(p, c.rest[:min(int64(len(c.rest)), c.room)])
	c.rest, c.room = c.rest[n:], c.room-int64(n)
	return n, nil
}

// fetch waits for arrivals and takes them over. Its error is the end.
func (c *clockConn) fetch() error {
	waited := c.calm
	for {
		c.mu.Lock()
		c.enough = batch
		if waited {
			c.enough = 1
		}
		if c.held > 0 && (c.held >= c.enough || c.err != nil) {
			c.queue, c.arrived, c.next = c.arrived, c.queue[:0], 0
			c.held, c.enough, c.calm = 0, math.MaxInt, false
			c.mu.Unlock()
			signal(c.taken)
			return nil
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			return err
		}
		rest := linger
		if waited {
			c.calm = true
			rest = math.MaxInt64
		}
		if !c.deadline.IsZero() {
			left := time.Until(c.deadline)
			if left <= 0 && waited {
				return context.DeadlineExceeded
			}
			rest = max(0, min(rest, left))
		}
		if c.timer == nil {
			c.timer = time.NewTimer(rest)
		} else {
			c.timer.Reset(rest)
		}
		select {
		case <-c.wake:
		case <-c.timer.C:
			waited = true
		case <-c.closing:
			return net.ErrClosed
		}
	}
}

// lastS is the time of the last read after the first write, in seconds.
func (c *clockConn) lastS() float64 { return c.last.Sub(c.first).Seconds() }
