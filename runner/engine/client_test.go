package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"twopoint/results/event"
)

func client(t testing.TB, base string, limits Limits) *Client {
	t.Helper()
	c, err := NewClient(base, "", limits)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// listen serves each connection with handle, given the request.
func listen(t testing.TB, handle func(net.Conn, *http.Request)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				io.Copy(io.Discard, req.Body)
				handle(conn, req)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// anyText is a parse for streams of {"t":"text","n":count,"f":"finish"}.
func anyText(data []byte, s *event.Sample) (Part, error) {
	var m struct {
		T, F string
		N    *int64
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return Part{}, err
	}
	Count(&s.CompletionTokens, m.N)
	part := Part{Text: m.T, Finish: m.F}
	if m.T != "" {
		part.Tokens = 1
	}
	return part, nil
}

var streamed = Request{IDs: []int32{1, 2, 3}, MaxTokens: 2, Stream: true}

func TestExchangeAgainstRawServers(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	for _, c := range []struct {
		name, answer string
		kind, detail string
	}{
		{"http/1.0, closed at the end", "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"t\":\"x\"}\n\ndata: {\"f\":\"length\"}\n\ndata: [DONE]\n\n", "", ""},
		{"interim answers", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + head + "data: {\"t\":\"x\",\"f\":\"length\"}\n\ndata: [DONE]\n\n", "", ""},
		{"last line cut", head + "data: {\"t\":\"x\"}\n\ndata: {\"t\":\"y", "stream-cut", "closed early after 1 of 2 tokens"},
		{"nothing", "", "stream-cut", "closed early before the answer"},
		{"header only", head, "stream-cut", "closed early after the header, before a token"},
		{"half a header", "HTTP/1.1 200 OK\r\nContent-", "stream-cut", "closed early before the answer"},
		{"not http", "SSH-2.0-OpenSSH_9.6\r\n\r\n", "bad-response", "the answer is not HTTP"},
		{"header without end", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", maxHeader+10), "bad-response", errTooMuch.Error()},
		{"not json", head + "data: hello\n\ndata: [DONE]\n\n", "bad-response", "an event cannot be read"},
		{"after the end marker", head + "data: {\"t\":\"x\",\"f\":\"length\"}\n\ndata: [DONE]\n\ndata: garbage\n\n", "", ""},
		{"error event", head + "event: error\ndata: {\"t\":\"\",\"error\":\"no pages left\"}\n\n", "http-error", "no pages left"},
		{"json for a stream", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"t\":\"x\",\"n\":2,\"f\":\"length\"}", "", ""},
		{"error page", "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<html>\n<b>nginx</b></html>", "http-error", "<html> <b>nginx</b></html>"},
		{"empty 500", "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "http-error", ""},
		{"redirect", "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n", "http-error", "redirected to http://other/, which is not followed"},
		{"redirect with a secret", "HTTP/1.1 302 Found\r\nLocation: https://me:pw@other:8/login?token=s#f\r\nContent-Length: 0\r\n\r\n", "http-error", "redirected to https://other:8/login, which is not followed"},
		{"redirect to nonsense", "HTTP/1.1 302 Found\r\nLocation: http://[::\r\nContent-Length: 0\r\n\r\n", "http-error", "redirected elsewhere, which is not followed"},
		{"created elsewhere", "HTTP/1.1 201 Created\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "http-error", ""},
		{"compressed", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08data: {\"t\":\"x\"}\n\n", "bad-response", "the answer is compressed although that was not asked for: something on the way does that (gzip)"},
		{"compressed refusal", "HTTP/1.1 503 Service Unavailable\r\nContent-Encoding: br\r\n\r\n\x1f\x8b", "http-error", "the words of the server are compressed (br)"},
		{"not compressed, and says so", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: identity\r\n\r\ndata: {\"t\":\"x\",\"f\":\"length\"}\n\ndata: [DONE]\n\n", "", ""},
		{"a page", "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<html>Sign in</html>", "bad-response", "the answer is a page: <html>Sign in"},
		{"no content type", "HTTP/1.1 200 OK\r\n\r\ndata: {\"t\":\"x\",\"f\":\"length\"}\n\ndata: [DONE]\n\n", "", ""},
		{"interim answers without end", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", maxHeader/20), "bad-response", errTooMuch.Error()},
		{"counted whole, closed", head + "data: {\"t\":\"x\",\"n\":2}\n\n", "", ""},
		{"chunked, cut", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ndata: {\"t\":\"x\"}\n\n", "stream-cut", "closed early after 1 of 2 tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := listen(t, func(conn net.Conn, req *http.Request) {
				if req.Header.Get("Connection") != "close" && !req.Close || req.Header.Get("Accept-Encoding") != "" || req.ContentLength <= 0 {
					t.Errorf("request: close %v, headers %v, length %d", req.Close, req.Header, req.ContentLength)
				}
				io.WriteString(conn, c.answer)
			})
			s := client(t, url, Limits{}).Exchange(t.Context(), streamed, "/x", map[string]any{"a": 1}, anyText)
			if s.Error != c.kind || !strings.HasPrefix(s.Detail, c.detail) || c.detail == "" && s.Detail != "" {
				t.Errorf("%q %q, want %q %q", s.Error, s.Detail, c.kind, c.detail)
			}
			wire := map[string]string{"": "", "http-error": "http", "bad-response": "malformed", "stream-cut": "cut"}[c.kind]
			switch c.name {
			case "nothing", "half a header", "chunked, cut":
				wire = "eof"
			case "error event":
				wire = "error-event"
			case "last line cut":
				wire = "eof"
			}
			if s.Transport != wire {
				t.Errorf("transport %q, want %q", s.Transport, wire)
			}
			if s.TotalS < 0 || s.Start.IsZero() || s.ContextRequested != 3 || s.TokensRequested != 2 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestAStreamLeftOpenAfterItsEndMarker(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	url := listen(t, func(conn net.Conn, _ *http.Request) {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"t\":\"x\",\"f\":\"length\"}\n\ndata: [DONE]\n\n")
		<-release
	})
	s := client(t, url, Limits{}).Exchange(t.Context(), streamed, "/x", nil, anyText)
	if s.Error != "" || len(s.Notes) != 1 || s.TotalS >= endGrace.Seconds() {
		t.Errorf("%+v", s)
	}
}

func TestTheClockStartsAfterTheConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connected, first := make(chan time.Time, 1), make(chan time.Time, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		connected <- time.Now()
		conn.Read(make([]byte, 1))
		first <- time.Now()
	}()
	before := time.Now()
	s := client(t, "http://"+l.Addr().String(), Limits{}).Exchange(t.Context(), streamed, "/x", nil, anyText)
	if s.Start.Before(before) || s.Start.After(<-first) || s.ConnectS <= 0 {
		t.Errorf("start %v, connection at %v", s.Start, <-connected)
	}
}

func TestUnreachableAndCancelled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	l.Close()
	if s := client(t, url, Limits{}).Exchange(t.Context(), streamed, "/x", nil, anyText); s.Error != "unreachable" || s.Transport != "refused" || !strings.Contains(s.Detail, "refused") {
		t.Errorf("%q %q", s.Error, s.Detail)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	slow := listen(t, func(conn net.Conn, _ *http.Request) {
		cancel(errors.New("interrupted"))
		conn.Read(make([]byte, 1))
	})
	if s := client(t, slow, Limits{}).Exchange(ctx, streamed, "/x", nil, anyText); s.Error != "cancelled" || s.Detail != "interrupted before the answer" {
		t.Errorf("%q %q", s.Error, s.Detail)
	}
}

func TestNoTokenDefaultGrowsWithContext(t *testing.T) {
	for _, c := range []struct {
		prompt, tokens int
		stream         bool
		want           string
	}{{1000, 17, true, "5m20s"}, {200_000, 17, true, "1h11m40s"}, {1000, 17, false, "5m37s"}} {
		if got := NoTokenDefault.For(c.prompt, c.tokens, c.stream).String(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestWhichLimitIsArmed(t *testing.T) {
	for _, c := range []struct {
		name          string
		limits        Limits
		stream, token bool
		want          string
		after         time.Duration
	}{
		{"nothing set", Limits{}, true, false, "no_token", NoTokenDefault.For(3, 2, true)},
		{"nothing set, after a token", Limits{}, true, true, "no_token", NoTokenDefault.For(3, 2, true)},
		{"first token", Limits{FirstToken: time.Second}, true, false, "first_token", time.Second},
		{"first token, later than the default", Limits{FirstToken: time.Hour}, true, false, "first_token", time.Hour},
		{"first token has come", Limits{FirstToken: time.Second}, true, true, "no_token", NoTokenDefault.For(3, 2, true)},
		{"first token of an answer that does not stream", Limits{FirstToken: time.Second}, false, false, "no_token", NoTokenDefault.For(3, 2, false)},
		{"total", Limits{Total: time.Second}, true, true, "total", time.Second},
		{"total is later", Limits{FirstToken: time.Second, Total: time.Minute}, true, false, "first_token", time.Second},
	} {
		d := &clockConn{}
		x := &exchange{c: &Client{limits: c.limits.Effective()}, r: Request{IDs: []int32{1, 2, 3}, MaxTokens: 2, Stream: c.stream}, conn: d}
		before := time.Now()
		x.arm(c.token)
		if x.armed != c.want || x.armedFor != c.after || d.deadline.Before(before.Add(c.after)) || d.deadline.After(time.Now().Add(c.after)) {
			t.Errorf("%s: %s of %v at %v", c.name, x.armed, x.armedFor, d.deadline.Sub(before))
		}
	}
}

func TestExcerpt(t *testing.T) {
	c := client(t, "http://x:1", Limits{})
	for _, in := range []string{strings.Repeat("é", 5000), strings.Repeat("a", 2045) + strings.Repeat("€", 10), "\xff\xfe" + strings.Repeat("\x80", 9000), "a\nb\r\n\tc\x00d", ""} {
		out := c.Excerpt(in)
		if len(out) > maxExcerpt || !utf8.ValidString(out) || strings.ContainsAny(out, "\n\r\x00") {
			t.Errorf("%d bytes, valid %v: %.40q", len(out), utf8.ValidString(out), out)
		}
	}
	if got := c.Excerpt("a\nb\r\n\tc\x00d"); got != "a b c d" {
		t.Errorf("%q", got)
	}
}

func TestErrorMessage(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"m","code":400}}`:        "m",
		`{"error":"m"}`:                               "m",
		`{"object":"error","message":"m"}`:            "m",
		`{"detail":"m"}`:                              "m",
		`{"detail":[{"loc":["body"],"msg":"extra"}]}`: `[{"loc":["body"],"msg":"extra"}]`,
		`{"error":null,"message":"m"}`:                "m",
		`{}`:                                          "",
		`[1]`:                                         "",
		`<html>`:                                      "",
		`{"error":{"error":{"error":{"message":"m"}}}}`: "m",
	} {
		if got := ErrorMessage([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

func TestDo(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/json":
			fmt.Fprint(w, `{"n": 12345678901234567}`)
		case "/redirect":
			http.Redirect(w, r, "/json", http.StatusFound)
		case "/slow":
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Second):
			}
		case "/text":
			fmt.Fprint(w, "hello")
		default:
			http.Error(w, `{"error":"gone"}`, http.StatusNotFound)
		}
	}))
	defer s.Close()
	c := client(t, s.URL, Limits{})
	var o map[string]any
	if status, err := c.Do(t.Context(), time.Minute, "GET", "/json", nil, &o); status != 200 || err != nil || o["n"] != json.Number("12345678901234567") {
		t.Errorf("%d %v %v", status, err, o)
	}
	var text string
	if _, err := c.Do(t.Context(), time.Minute, "GET", "/text", nil, &text); err != nil || text != "hello" {
		t.Errorf("%q %v", text, err)
	}
	var status *StatusError
	if _, err := c.Do(t.Context(), time.Minute, "POST", "/no", o, nil); !errors.As(err, &status) || err.Error() != "POST /no: status 404: gone" {
		t.Errorf("%v", err)
	}
	if code, err := c.Do(t.Context(), time.Minute, "GET", "/redirect", nil, nil); code != 302 || err == nil {
		t.Errorf("%d %v", code, err)
	}
	if code, err := c.Do(t.Context(), 50*time.Millisecond, "GET", "/slow", nil, nil); code != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d %v", code, err)
	}
	if _, err := c.Do(t.Context(), time.Minute, "GET", "/text", nil, &o); err == nil || !strings.Contains(err.Error(), "hello") {
		t.Errorf("%v", err)
	}
}

func TestFlat(t *testing.T) {
	got := Flat(map[string]any{
		"a": json.Number("1"), "b": map[string]any{"c": true, "api_key": "k"}, "admin_api_key": "k", "none": nil,
		"list": []any{1}, "long": strings.Repeat("x", maxSetting+1), "max_total_num_tokens": json.Number("5"),
	})
	if fmt.Sprint(got) != "map[a:1 b.c:true max_total_num_tokens:5]" {
		t.Errorf("%v", got)
	}
}

func TestGauges(t *testing.T) {
	text := "# TYPE r gauge\nr{m=\"a } b\",e=\"0\"} 2.0 1700000000\nr 1\nrr 5\nq{} NaN-ish\n"
	if sum, found := gauges(text, []string{"r", "q"}); sum != 3 || !found {
		t.Errorf("%v %v", sum, found)
	}
	if _, found := gauges(text, []string{"x"}); found {
		t.Error("found what is not there")
	}
}

func TestABusyParserDelaysNoArrival(t *testing.T) {
	here, there := net.Pipe()
	c := newClockConn(here)
	defer c.Close()
	go func() {
		io.WriteString(there, "first")
		io.WriteString(there, "second")
	}()
	buf := make([]byte, 100)
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "first" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	for come := false; !come; time.Sleep(time.Millisecond) { // as a parser that is busy with the first
		c.mu.Lock()
		come = c.held > 0 || c.next < len(c.queue)
		c.mu.Unlock()
	}
	busy := time.Now()
	if n, err := c.Read(buf); err != nil || string(buf[:n]) != "second" || c.last.After(busy) {
		t.Errorf("%q, %v, timed %v after it had come", buf[:n], err, c.last.Sub(busy))
	}
	there.Close()
	if _, err := c.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	c.Close()
	if err := c.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := c.Read(buf); err == nil {
		t.Error("reads after the end")
	}
}

// The Host header is what net/http would write: a zone is this machine's business.
func TestHostHeader(t *testing.T) {
	for base, want := range map[string]string{
		"http://127.0.0.1:8000":          "127.0.0.1:8000",
		"http://localhost:8000/v1":       "localhost:8000",
		"http://[::1]:8000":              "[::1]:8000",
		"http://[fe80::1%25eth0]:8080/x": "[fe80::1]:8080",
	} {
		c, err := NewClient(base, "", Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if raw := string(c.requestBytes("/completion", []byte("{}"))); !strings.Contains(raw, "\r\nHost: "+want+"\r\n") {
			t.Errorf("%s: %q", base, raw)
		}
	}
}
