package standin

import (
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// vocabulary makes every word a token, or so many, with ids in the order in which
// words first come up, from 1,000 on. Generated tokens without a word have ids from
// generatedID on and read t<id>.
type vocabulary struct {
	per   int // tokens of a word
	mu    sync.Mutex
	byID  []string // a word stands at its first token
	known map[string]int32
}

const (
	firstID     = 1_000
	generatedID = 1_000_000
)

func (v *vocabulary) ids(text string) []int32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known == nil {
		v.known = map[string]int32{}
	}
	out := []int32{}
	for _, word := range strings.Fields(text) {
		id, ok := v.known[word]
		if !ok {
			id = firstID + int32(len(v.byID))
			v.known[word] = id
			v.byID = append(v.byID, word)
			v.byID = append(v.byID, make([]string, v.per-1)...)
		}
		for i := range v.per {
			out = append(out, id+int32(i))
		}
	}
	return out
}

func (v *vocabulary) text(ids []int32) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var b strings.Builder
	for _, id := range ids {
		if i := int(id) - firstID; i >= 0 && i < len(v.byID) {
			if v.byID[i] == "" {
				continue
			}
			b.WriteString(v.byID[i])
		} else {
			b.WriteString("t" + strconv.Itoa(int(id)))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// A fact that a prompt plants, and the question for it.
var (
	planted  = regexp.MustCompile(`The secret code of (\S+) is (\S+?)\.(?:\s|$)`)
	question = regexp.MustCompile(`What is the secret code of (\S+?)\?(?:\s+The secret code of \S+ is)?\s*$`)
)

// found is the planted value that the end of a prompt asks for, or "".
func found(prompt string) string {
	q := question.FindStringSubmatch(prompt)
	if q == nil {
		return ""
	}
	for _, f := range planted.FindAllStringSubmatch(prompt, -1) {
		if f[1] == q[1] {
			return f[2]
		}
	}
	return ""
}

// output is n tokens after a prompt: the value that it asks for, if it asks, and
// then what depends on the prompt and the place alone; from token vary on, where
// that is not 0, also on the request.
func (s *Server) output(a *ask, n int) []int32 {
	h := fnv.New32a()
	for _, id := range a.ids[min(len(a.ids), a.skip()):] {
		h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)})
	}
	seed := h.Sum32()
	var out []int32
	if value := found(a.text(s)); value != "" && !a.script.Answer.NeedleLost {
		out = append(out, s.vocabulary.ids("It is "+value)...)
	}
	for i := len(out); i < n; i++ {
		id := seed%9_973 + uint32(i)*7919
		if v := a.script.Answer.Vary; v > 0 && i >= v {
			id += uint32(a.number) * 31
		}
		out = append(out, generatedID+int32(id%100_000))
	}
	return out[:n]
}
