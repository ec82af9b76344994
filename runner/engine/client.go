package engine

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Bounds on what is read from a server, so that none can fill our memory.
const (
	maxHeader  = 1 << 20   // of an answer's header
	maxBody    = 64 << 20  // of an answer that is read whole
	maxStream  = 512 << 20 // of a whole stream
	maxExcerpt = 2 << 10   // of a server's words in an error
)

// ConnectDefault is the connect limit where none is set. A server beside us
// answers in microseconds; five seconds is a lost SYN or two.
const ConnectDefault = 5 * time.Second

// endGrace is how long a stream may stay open after its own end marker.
const endGrace = 2 * time.Second

// Limits bound a timed request. Nothing else does: there is no hidden overall
// limit.
type Limits struct {
	Connect    time.Duration // 0: ConnectDefault
	FirstToken time.Duration // 0: NoToken holds for the first token too
	Total      time.Duration // 0: none
	NoToken    NoToken       // zero: NoTokenDefault
}

// Effective is limits with the defaults filled in.
func (l Limits) Effective() Limits {
	if l.Connect == 0 {
		l.Connect = ConnectDefault
	}
	if l.NoToken == (NoToken{}) {
		l.NoToken = NoTokenDefault
	}
	return l
}

// NoToken is how long a request may go without a new token: Base, and a time for
// each prompt token. An answer that does not stream shows no token before its
// end, so its tokens add a time each. Keep-alive comments do not extend it.
type NoToken struct {
	Base, PerPromptToken, PerToken time.Duration
}

// NoTokenDefault lets a prefill of 50 tok/s pass.
var NoTokenDefault = NoToken{Base: 5 * time.Minute, PerPromptToken: 20 * time.Millisecond, PerToken: time.Second}

// For is the deadline of one request.
func (n NoToken) For(promptTokens, maxTokens int, stream bool) time.Duration {
	d := n.Base + time.Duration(promptTokens)*n.PerPromptToken
	if !stream {
		d += time.Duration(maxTokens) * n.PerToken
	}
	return d
}

// Client speaks to one server. It uses no proxy, follows no redirect, asks for
// no compression and opens a fresh connection for every request. It is safe
// for concurrent use.
type Client struct {
	limits  Limits
	base    *url.URL
	key     string
	control *http.Client

	loopback bool   // base is an address of loopback
	host     string // of the header: no zone, which means nothing to the server (RFC 6874, section 1)

	mu      sync.Mutex
	refused []string // what this server was found to refuse, in order
}

// NewClient returns a client for the server at base, such as
// http://127.0.0.1:30000. Paths are appended to base's own. 0.0.0.0 and [::],
// which are addresses to bind and not to connect to, become loopback. The key,
// if not empty, is sent as a bearer token and never shows in an error.
func NewClient(base, key string, limits Limits) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("a server's url is http://host:port or https://host:port")
	}
	if u.User != nil {
		return nil, errors.New("a server's url holds no user or password: give the key by its own setting")
	}
	if strings.ContainsAny(key, "\r\n") {
		return nil, errors.New("the api key holds a line break")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1"
		}
	}
	u.Host = net.JoinHostPort(host, port)
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath, u.RawQuery, u.Fragment = "", "", ""
	c := &Client{limits: limits.Effective(), base: u, key: key}
	bare, _, _ := strings.Cut(host, "%")
	c.loopback, c.host = net.ParseIP(host).IsLoopback(), net.JoinHostPort(bare, port)
	c.control = &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            c.dial,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Limits are those in force.
func (c *Client) Limits() Limits { return c.limits }

// Base is the address in use, after 0.0.0.0 has become loopback.
func (c *Client) Base() string { return c.base.String() }

// Refuse remembers that the server takes no such field or route, so that it is
// not offered again. It tells whether that is news.
func (c *Client) Refuse(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.refused, what) {
		return false
	}
	c.refused = append(c.refused, what)
	return true
}

// Refused lists what the server was found to refuse, in the order of discovery.
func (c *Client) Refused() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.refused)
}

// dial tries both address families of a name; the second starts after 20 ms or
// at the first's refusal, so a localhost that resolves to ::1 first costs little.
func (c *Client) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: c.limits.Connect, FallbackDelay: 20 * time.Millisecond}
	if c.loopback {
		d.KeepAlive = -1 // four system calls that keep no connection alive there
	}
	return d.DialContext(ctx, network, addr)
}

// StatusError is an answer other than 200 to a control request.
type StatusError struct {
	Method, Path string
	Status       int
	Text         string // the server's words, bounded
}

// NoRoute tells whether an error is a 404: the server lacks what was asked for.
func NoRoute(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Status == http.StatusNotFound
}

func (e *StatusError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s %s: status %d", e.Method, e.Path, e.Status)
	}
	return fmt.Sprintf("%s %s: status %d: %s", e.Method, e.Path, e.Status, e.Text)
}

// Do makes an untimed control request within the time given and reads the
// answer whole. in, if not nil, is sent as JSON; a *string out takes the body as
// it is, any other out that is not nil is decoded from JSON with numbers kept
// as json.Number. The status is 0 where there was no answer; any but 200 is a
// *StatusError.
func (c *Client) Do(ctx context.Context, within time.Duration, method, path string, in, out any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base()+path, body)
	if err != nil {
		return 0, err
	}
	c.headers(req.Header, in != nil)
	resp, err := c.control.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address stands in the dial error where it matters
		}
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return resp.StatusCode, &StatusError{method, path, resp.StatusCode, c.ServerWords(b)}
	case err != nil:
		return resp.StatusCode, fmt.Errorf("%s %s: %w", method, path, err)
	case packing(resp) != "":
		return resp.StatusCode, fmt.Errorf("%s %s: %w: it %s (%s)", method, path, ErrUnreadable, packed, packing(resp))
	case len(b) > maxBody:
		return resp.StatusCode, fmt.Errorf("%s %s: the answer is longer than %d MiB", method, path, maxBody>>20)
	}
	switch out := out.(type) {
	case nil:
		return resp.StatusCode, nil
	case *string:
		*out = string(b)
		return resp.StatusCode, nil
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(out); err != nil {
		return resp.StatusCode, fmt.Errorf("%s %s: the answer is not the JSON that was expected (%w): %s", method, path, err, c.Excerpt(string(b)))
	}
	return resp.StatusCode, nil
}

// packed is why a compressed answer is refused: unpacking would be inside the clock,
// and bounds on what is read would mean nothing.
const packed = "is compressed although that was not asked for: something on the way does that"

// packing is how an answer is compressed; empty: it is not.
func packing(resp *http.Response) string {
	if kind := resp.Header.Get("Content-Encoding"); !strings.EqualFold(kind, "identity") {
		return kind
	}
	return ""
}

func (c *Client) headers(h http.Header, body bool) {
	if body {
		h.Set("Content-Type", "application/json")
	}
	h.Set("User-Agent", "twopoint")
	if c.key != "" {
		h.Set("Authorization", "Bearer "+c.key)
	}
}

// Excerpt is text made fit for a record: at most 2 KiB of valid UTF-8 on one
// line, with the key taken out.
func (c *Client) Excerpt(text string) string {
	if c.key != "" {
		text = strings.ReplaceAll(text, c.key, "[api key]")
	}
	if len(text) > maxExcerpt {
		text = text[:maxExcerpt-len("…")]
		for i := 0; i < utf8.UTFMax && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]); i++ {
			text = text[:len(text)-1]
		}
		text += "…"
	}
	text = strings.ToValidUTF8(text, "?")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' }), " ")
}

// ServerWords finds the message in the body of an error, fit for a record;
// where it finds none, the body itself stands for it.
func (c *Client) ServerWords(body []byte) string {
	if m := ErrorMessage(body); m != "" {
		return c.Excerpt(m)
	}
	return c.Excerpt(string(body[:min(len(body), 2*maxExcerpt)]))
}

// ErrorMessage is the message of a JSON error object, or "" where body is none.
// Servers write {"error":{"message":…}}, {"error":"…"}, {"message":…} or
// {"detail":…}.
func ErrorMessage(body []byte) string {
	var o struct {
		Error, Message, Detail json.RawMessage
	}
	if json.Unmarshal(body, &o) != nil {
		return ""
	}
	for _, raw := range []json.RawMessage{o.Error, o.Message, o.Detail} {
		var text string
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		if json.Unmarshal(raw, &text) == nil && text != "" {
			return text
		}
		if m := ErrorMessage(raw); m != "" {
			return m
		}
		return string(raw)
	}
	return ""
}

// connect opens a connection for one timed request, TLS included.
func (c *Client) connect(ctx context.Context) (*clockConn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limits.Connect)
	defer cancel()
	conn, err := c.dial(ctx, "tcp", c.base.Host)
	if err != nil {
		return nil, err
	}
	if c.base.Scheme == "https" {
		t := tls.Client(conn, &tls.Config{ServerName: c.base.Hostname(), NextProtos: []string{"http/1.1"}})
		if err := t.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		conn = t
	}
	return newClockConn(conn), nil
}

// requestBytes is the whole request, header and body, so that it leaves in one
// write.
func (c *Client) requestBytes(path string, body []byte) []byte {
	b := make([]byte, 0, len(body)+len(c.base.Path)+len(path)+len(c.base.Host)+len(c.key)+256)
	b = append(append(append(b, "POST "...), c.base.EscapedPath()...), path...)
	b = append(append(b, " HTTP/1.1\r\nHost: "...), c.host...)
	b = append(b, "\r\nUser-Agent: twopoint\r\nContent-Type: application/json\r\nConnection: close\r\n"...)
	if c.key != "" {
		b = append(append(append(b, "Authorization: Bearer "...), c.key...), "\r\n"...)
	}
	b = strconv.AppendInt(append(b, "Content-Length: "...), int64(len(body)), 10)
	return append(append(b, "\r\n\r\n"...), body...)
}
