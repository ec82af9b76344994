package engine

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"twopoint/results/event"
	"twopoint/runner/failure"
)

// Failure kinds that an exchange can tell by itself (design.md 7). What lies
// behind an http-error is found by package failure.
const (
	kindUnreachable = string(failure.Unreachable)
	kindTimeout     = string(failure.Timeout)
	kindCancelled   = string(failure.Cancelled)
	kindHTTP        = string(failure.HTTPError)
	kindCut         = string(failure.StreamCut)
	kindBad         = string(failure.BadResponse)
)

// What was met on the wire, in Sample.Transport: the words of package failure.
const (
	wireRefused   = string(failure.Refused)
	wireNoRoute   = string(failure.NoRoute)
	wireReset     = string(failure.Reset)
	wireEOF       = string(failure.EOF) // closed in the middle of a message
	wireCut       = string(failure.Cut) // closed properly, but before the end
	wireTimeout   = string(failure.TimedOut)
	wireHTTP      = string(failure.HTTP)
	wireEvent     = string(failure.ErrorEvent)
	wireMalformed = string(failure.Malformed)
)

// Names of limits, in Sample.Limit.
const (
	limitConnect    = "connect"
	limitFirstToken = "first_token"
	limitTotal      = "total"
	limitNoToken    = "no_token"
)

// maxChunks bounds the arrivals that are kept of one answer.
const maxChunks = 1 << 20

// maxRoom is for how many arrivals room is made beforehand.
const maxRoom = 16 << 10

// Part is what one event of a stream adds, or the one body of an answer that
// does not stream.
type Part struct {
	Tokens int     // in it: 0 none, -1 some, the number unknown
	IDs    []int32 // the new tokens, where the server gives them
	Text   string  // the new text
	Finish string  // the reason to end, in the part that has it
	Done   bool    // this is the engine's own last event
	Failed string  // an error that the server reports inside the answer
}

// Parse reads the data of one event, or the body of an answer that does not
// stream, and sets on the sample what the server reports there (counts, cached
// tokens, its own times). It must not keep data.
type Parse func(data []byte, s *event.Sample) (Part, error)

// Count keeps a count that the server reports; nil and negative ones are none.
func Count(to **int64, reported *int64) {
	if reported == nil || *reported < 0 {
		return
	}
	if *to == nil {
		*to = new(int64)
	}
	**to = *reported
}

// WithIDs is a body: the JSON object Fields, which has at least one, and the list
// IDs under a name of its own, unless it is nil. A long list costs a third of what
// encoding/json takes for it.
type WithIDs struct {
	Fields any
	Name   string
	IDs    []int32
}

func (w WithIDs) json() ([]byte, error) {
	b, err := json.Marshal(w.Fields)
	if err != nil || w.IDs == nil {
		return b, err
	}
	b = slices.Grow(b, 8*len(w.IDs)+len(w.Name)+len(`,"":[]}`))
	b = append(b[:len(b)-1], ',')
	b = append(strconv.AppendQuote(b, w.Name), ':', '[')
	for i, id := range w.IDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']', '}'), nil
}

// Exchange posts body as JSON to path on a fresh connection and reads the
// answer to its end. The clock starts just before the first byte is written
// and stops at the last byte read. It decides how the answer ended; what the
// events mean is parse's business. "[DONE]" never reaches parse.
func (c *Client) Exchange(ctx context.Context, r Request, path string, body any, parse Parse) event.Sample {
	x := &exchange{c: c, r: r, parse: parse}
	x.s = event.Sample{ContextRequested: len(r.IDs), TokensRequested: r.MaxTokens, Start: time.Now().UTC()}
	w, is := body.(WithIDs)
	if !is {
		w.Fields = body
	}
	raw, err := w.json()
	if err != nil {
		x.fail(kindBad, "", "make the request: "+err.Error())
		return x.s
	}
	x.run(ctx, c.requestBytes(path, raw))
	return x.s
}

// exchange is one timed request under way.
type exchange struct {
	c     *Client
	r     Request
	parse Parse
	s     event.Sample
	conn  *clockConn

	armed    string        // the limit that the connection's deadline stands for
	armedFor time.Duration // its length

	ids, text   digest
	nIDs, nText int64
	tokens      int64 // summed over chunks, as far as known
	unknown     bool  // a chunk's number of tokens is not known
	done        bool  // end marker seen
}

func (x *exchange) fail(kind, wire, detail string) {
	x.s.Error, x.s.Transport, x.s.Detail = kind, wire, x.c.Excerpt(detail)
}

func (x *exchange) note(text string) {
	if !slices.Contains(x.s.Notes, text) {
		x.s.Notes = append(x.s.Notes, text)
	}
}

func (x *exchange) run(ctx context.Context, raw []byte) {
	dialing := time.Now()
	conn, err := x.c.connect(ctx)
	x.s.ConnectS = time.Since(dialing).Seconds()
	if err != nil {
		var ne net.Error
		switch {
		case ctx.Err() != nil:
			x.fail(kindCancelled, "", context.Cause(ctx).Error())
		case errors.As(err, &ne) && ne.Timeout():
			x.s.Limit = limitConnect
			x.fail(kindTimeout, wireNoRoute, fmt.Sprintf("no connection within %v (limit connect)", x.c.limits.Connect))
		case errors.Is(err, syscall.ECONNREFUSED):
			x.fail(kindUnreachable, wireRefused, err.Error())
		default:
			x.fail(kindUnreachable, wireNoRoute, err.Error())
		}
		return
	}
	x.conn = conn
	defer conn.Close()
	// Closing is the one way to stop a read that no later deadline can undo.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	if x.r.Begin != nil {
		x.r.Begin()
	}
	x.arm(false)
	conn.SetWriteDeadline(conn.deadline)
	_, werr := conn.Write(raw)
	x.s.Start, x.s.Began = conn.first.UTC(), conn.first

	br := bufio.NewReaderSize(conn, readSize)
	resp, err := readResponse(br)
	if err != nil {
		switch {
		case conn.ended != nil: // a header that was cut reads as malformed
			err = conn.ended
		case werr != nil:
			err = werr
		}
		x.stop(ctx, err)
		return
	}
	defer resp.Body.Close()
	headerS := conn.lastS()
	x.s.HeaderS, x.s.HTTPStatus = &headerS, resp.StatusCode

	kind, how := resp.Header.Get("Content-Type"), packing(resp)
	switch {
	case resp.StatusCode != http.StatusOK:
		x.fail(kindHTTP, wireHTTP, x.refusal(resp, how))
		x.s.TotalS = conn.lastS()
	case how != "":
		x.fail(kindBad, wireMalformed, fmt.Sprintf("the answer %s (%s)", packed, how))
		x.s.TotalS = conn.lastS()
	case strings.Contains(kind, "html"):
		x.fail(kindBad, wireMalformed, "the answer is a page: "+x.excerpt(resp.Body))
		x.s.TotalS = conn.lastS()
	case streams(kind, x.r.Stream):
		conn.room = maxStream
		x.s.Streamed = true
		x.stream(ctx, resp.Body, lines(kind))
	default:
		conn.room = maxBody
		x.whole(ctx, resp.Body)
	}
	x.finish()
}

// excerpt is the beginning of a body that is no answer.
func (x *exchange) excerpt(body io.Reader) string {
	x.conn.room = maxHeader
	b, _ := io.ReadAll(io.LimitReader(body, 32*maxExcerpt))
	return x.c.ServerWords(b)
}

// refusal is what an answer other than 200 says.
func (x *exchange) refusal(resp *http.Response, how string) string {
	if to := resp.Header.Get("Location"); to != "" && resp.StatusCode/100 == 3 {
		where := "elsewhere"
		if u, err := url.Parse(to); err == nil {
			u.User, u.RawQuery, u.Fragment = nil, "", "" // may be secret
			where = "to " + u.String()
		}
		return "redirected " + where + ", which is not followed"
	}
	if how != "" {
		return "the words of the server are compressed (" + how + ") although that was not asked for"
	}
	return x.excerpt(resp.Body)
}

// readResponse reads the header of the final answer, past interim ones.
func readResponse(br *bufio.Reader) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodPost})
		if err != nil || resp.StatusCode >= 200 {
			return resp, err
		}
	}
}

func streams(contentType string, asked bool) bool {
	switch {
	case strings.Contains(contentType, "event-stream"), lines(contentType):
		return true
	case strings.Contains(contentType, "json"):
		return false
	}
	return asked
}

// lines tells whether a stream is one JSON object a line. Ollama says so
// (application/x-ndjson).
func lines(contentType string) bool { return strings.Contains(contentType, "ndjson") }

// arm sets the deadline of the answer to the nearest limit, counted from the last
// arrival.
func (x *exchange) arm(hasToken bool) {
	lim, now := x.c.limits, x.conn.last
	if now.IsZero() {
		now = time.Now()
	}
	prompt := len(x.r.IDs)
	if prompt == 0 {
		prompt = len(x.r.Text) / 3 // tokens of text are three bytes or longer, near enough for a limit
	}
	x.armed, x.armedFor = limitNoToken, lim.NoToken.For(prompt, x.r.MaxTokens, x.r.Stream)
	if lim.FirstToken > 0 && x.r.Stream && !hasToken {
		x.armed, x.armedFor = limitFirstToken, lim.FirstToken
	}
	at := now.Add(x.armedFor)
	if x.done {
		x.armed, at = "", now.Add(endGrace)
	}
	if lim.Total > 0 {
		start := x.conn.first
		if start.IsZero() {
			start = now
		}
		if total := start.Add(lim.Total); total.Before(at) {
			x.armed, x.armedFor, at = limitTotal, lim.Total, total
		}
	}
	x.conn.deadline = at
}

// stream reads events to the end of the stream and judges the end (cases.md
// C-27).
func (x *exchange) stream(ctx context.Context, body io.Reader, lines bool) {
	frames := NewFrames(body, x.conn.lastS)
	frames.Lines = lines
	var end error
	for end == nil {
		ev, err := frames.Next()
		if err != nil {
			end = err
			break
		}
		data := bytes.TrimSpace(ev.Data)
		switch {
		case len(data) == 0 || x.done:
			continue
		case string(data) == "[DONE]":
			x.done = true
			x.arm(true)
			continue
		}
		part, err := x.parse(data, &x.s)
		if ev.Name == "error" && part.Failed == "" {
			part.Failed = x.c.ServerWords(data)
		}
		switch {
		case part.Failed != "":
			x.fail(kindHTTP, wireEvent, part.Failed)
			x.s.TotalS = x.conn.lastS()
			return
		case err != nil && ev.Cut:
			end = io.ErrUnexpectedEOF
			continue
		case err != nil:
			x.fail(kindBad, wireMalformed, fmt.Sprintf("an event cannot be read (%v): %s", err, x.c.Excerpt(string(data[:min(len(data), maxExcerpt)]))))
			x.s.TotalS = x.conn.lastS()
			return
		}
		if part.Tokens != 0 {
			if len(x.s.ChunkS) == maxChunks {
				x.fail(kindBad, wireMalformed, fmt.Sprintf("the stream has more than %d chunks", maxChunks))
				return
			}
			if x.s.TTFTS == nil {
				at := ev.AtS
				x.s.TTFTS = &at
				room := max(0, min(x.r.MaxTokens, maxRoom))
				x.s.ChunkS, x.s.ChunkTokens = make([]float64, 0, room), make([]int32, 0, room)
			}
			x.s.ChunkS = append(x.s.ChunkS, ev.AtS)
			x.s.ChunkTokens = append(x.s.ChunkTokens, int32(min(max(part.Tokens, 0), math.MaxInt32)))
		}
		x.take(part)
		if part.Tokens != 0 || x.done {
			x.arm(true)
		}
	}
	x.s.TotalS = x.conn.lastS()
	x.judge(ctx, end)
}

// What is kept of an output that is asked for.
const (
	maxOutputIDs  = 16_384
	maxOutputText = 64 << 10 // bytes
)

// take keeps what a part adds.
func (x *exchange) take(p Part) {
	if p.Tokens < 0 {
		x.unknown = true
	} else {
		x.tokens += int64(p.Tokens)
	}
	for _, id := range p.IDs {
		x.ids.room = binary.LittleEndian.AppendUint32(x.ids.room, uint32(id))
	}
	x.nIDs += int64(len(p.IDs))
	x.ids.gather()
	x.text.room = append(x.text.room, p.Text...)
	x.nText += int64(len(p.Text))
	x.text.gather()
	if x.r.KeepOutput {
		x.s.OutputIDs = append(x.s.OutputIDs, p.IDs[:min(len(p.IDs), maxOutputIDs-len(x.s.OutputIDs))]...)
		x.s.OutputText += p.Text[:min(len(p.Text), maxOutputText-len(x.s.OutputText))]
	}
	if p.Finish != "" {
		x.s.Finish = p.Finish
	}
	x.done = x.done || p.Done
}

// judge decides what the end of a stream means. Whole: an end marker, or a
// finish reason and a proper close, or the server's own count of all the tokens
// asked for. Everything else was cut.
func (x *exchange) judge(ctx context.Context, end error) {
	counted := x.s.CompletionTokens != nil
	full := counted && *x.s.CompletionTokens == int64(x.r.MaxTokens)
	closed := errors.Is(end, io.EOF)
	switch {
	case x.done:
		if !closed {
			x.note("the connection was not closed properly after the end marker")
		}
		if x.s.Finish == "" {
			if counted {
				x.note("no finish reason; the server's count stands for it")
			} else {
				x.note("no finish reason and no count")
			}
		}
	case ctx.Err() == nil && x.s.Finish != "" && (closed || counted && !isTimeout(end)):
		x.note("no end marker")
		if !closed {
			x.note("the connection was not closed properly after the finish reason")
		}
	case closed && full:
		x.note("no end marker and no finish reason; the server's count is complete")
	default:
		x.stop(ctx, end)
	}
	x.detectBuffered()
}

// whole reads an answer that does not stream.
func (x *exchange) whole(ctx context.Context, body io.Reader) {
	b, err := io.ReadAll(body)
	x.s.TotalS = x.conn.lastS()
	if err != nil {
		x.stop(ctx, err)
		return
	}
	part, err := x.parse(b, &x.s)
	switch {
	case part.Failed != "":
		x.fail(kindHTTP, wireEvent, part.Failed)
	case err != nil:
		x.fail(kindBad, wireMalformed, fmt.Sprintf("the answer cannot be read (%v): %s", err, x.c.Excerpt(string(b[:min(len(b), maxExcerpt)]))))
	default:
		x.take(part)
		if x.s.Finish == "" {
			x.note("no finish reason")
		}
	}
}

// stop records why reading ended before the answer was whole.
func (x *exchange) stop(ctx context.Context, err error) {
	x.s.TotalS = time.Since(x.conn.first).Seconds()
	progress := "before the answer"
	if x.s.HTTPStatus != 0 {
		progress = "after the header, before a token"
	}
	if n := len(x.s.ChunkS); n > 0 {
		progress = fmt.Sprintf("after %d chunks with tokens", n)
		if !x.unknown {
			progress = fmt.Sprintf("after %d of %d tokens", x.tokens, x.r.MaxTokens)
		}
	}
	switch {
	case ctx.Err() != nil:
		x.fail(kindCancelled, "", context.Cause(ctx).Error()+" "+progress)
	case isTimeout(err):
		x.s.Limit = x.armed
		x.fail(kindTimeout, wireTimeout, fmt.Sprintf("limit %s of %v passed %s", x.armed, x.armedFor, progress))
	case errors.Is(err, ErrLongLine), errors.Is(err, errTooMuch):
		x.fail(kindBad, wireMalformed, err.Error())
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		x.fail(kindCut, wireReset, "reset "+progress)
	case errors.Is(err, io.EOF) && x.s.HTTPStatus != 0:
		x.fail(kindCut, wireCut, "closed early "+progress)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		x.fail(kindCut, wireEOF, "closed early "+progress)
	case x.s.HTTPStatus == 0:
		x.fail(kindBad, wireMalformed, "the answer is not HTTP: "+err.Error())
	default:
		x.fail(kindCut, wireReset, err.Error()+" "+progress)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// finish fills in what follows from the whole answer.
func (x *exchange) finish() {
	if x.unknown {
		x.s.ChunkTokens = nil
	}
	switch {
	case x.nIDs > 0 && (x.s.CompletionTokens == nil || x.nIDs == *x.s.CompletionTokens):
		x.s.OutputSHA256 = x.ids.sum()
	case x.nText > 0:
		x.s.OutputSHA256 = x.text.sum()
	}
}

// digest is a SHA-256 of what passes through room.
type digest struct {
	hash hash.Hash
	room []byte
}

// gather empties a room that is worth hashing.
func (d *digest) gather() {
	if len(d.room) < 1<<10 {
		return
	}
	if d.hash == nil {
		d.hash = sha256.New()
	}
	d.hash.Write(d.room)
	d.room = d.room[:0]
}

func (d *digest) sum() string {
	if d.hash == nil {
		d.hash = sha256.New()
	}
	d.hash.Write(d.room)
	return hex.EncodeToString(d.hash.Sum(nil))
}

// burst is the time within which something on the way must have held back
// several steps of a server.
const burst = 0.005

// detectBuffered marks a stream that was held back and released at its end
// (cases.md C-31): the first token comes with the last, and many chunks share a
// read. A server that is fast rather than held back has a read for each chunk.
func (x *exchange) detectBuffered() {
	n := len(x.s.ChunkS)
	if n < 4 {
		return
	}
	first, last := x.s.ChunkS[0], x.s.ChunkS[n-1]
	reads := 1
	for i := 1; i < n; i++ {
		if x.s.ChunkS[i] != x.s.ChunkS[i-1] {
			reads++
		}
	}
	x.s.Buffered = last-first <= burst && x.s.TotalS-first <= 2*burst && last-first <= first/10 && reads <= max(1, n/4)
}
