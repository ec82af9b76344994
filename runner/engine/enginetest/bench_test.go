package enginetest_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"twopoint/runner/engine"
	"twopoint/runner/engine/enginetest"
)

// BenchmarkGenerate is what a streamed answer costs where all of it is there at
// once, so that the server and the waiting for it cost next to nothing.
func BenchmarkGenerate(b *testing.B) {
	for dialect, event := range map[string]string{
		"openai":   `{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" tok","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[%d]}]}`,
		"sglang":   `{"text":" tok","output_ids":[%[1]d],"meta_info":{"id":"0123456789abcdef","finish_reason":null,"prompt_tokens":1000,"completion_tokens":%[1]d,"cached_tokens":0}}`,
		"llamacpp": `{"content":" tok","tokens":[%[1]d],"stop":false,"id_slot":0,"tokens_predicted":%[1]d,"tokens_evaluated":1000}`,
	} {
		for _, tokens := range []int{1, 4096} {
			b.Run(fmt.Sprintf("engine=%s/tokens=%d", dialect, tokens), func(b *testing.B) {
				var answer bytes.Buffer
				answer.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
				for i := range tokens {
					data := fmt.Sprintf("data: "+event+"\n\n", i+1)
					fmt.Fprintf(&answer, "%x\r\n%s\r\n", len(data), data)
				}
				answer.WriteString("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				go func() {
					for {
						conn, err := l.Accept()
						if err != nil {
							return
						}
						r, err := http.ReadRequest(bufio.NewReader(conn))
						if err == nil {
							io.Copy(io.Discard, r.Body)
							conn.Write(answer.Bytes())
						}
						conn.Close()
					}
				}()
				c := enginetest.Client(b, "http://"+l.Addr().String(), "", engine.Limits{})
				e := adapter(b, dialect)
				prompt := enginetest.Prompt(7, 1000)
				b.ReportAllocs()
				for b.Loop() {
					if s := e.Generate(b.Context(), c, engine.Request{Model: "m", IDs: prompt, MaxTokens: tokens, Stream: true}); s.Error != "" && s.Error != "stream-cut" || len(s.ChunkS) != tokens {
						b.Fatal(s.Error, s.Detail, len(s.ChunkS))
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*tokens), "ns/token")
			})
		}
	}
}
