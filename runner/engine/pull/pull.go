// Package pull reads JSON objects without reflection, at a tenth of what
// encoding/json takes, for the events of a stream: the client of a benchmark
// must cost less than what it measures. Bytes come in; fields go out, in their
// order, to code that asks for each by type, and what it sets is what
// encoding/json would set.
//
// It reads what servers write and no more. Whatever else comes (keys that are
// not of lower-case letters, numbers with an exponent where whole ones are
// asked for, values of another type, syntax errors) makes Done answer false, and
// the caller gives the same bytes to encoding/json, whose word is final. So it
// decides no error and reports none.
package pull

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// Reader walks one JSON text from its beginning to its end. After anything that
// it does not take, every method returns at once and reads nothing. It keeps no
// state beyond the text and is cheap to make.
type Reader struct {
	b   []byte
	i   int
	bad bool
}

// Of reads text, which must not change meanwhile.
func Of(text []byte) Reader { return Reader{b: text} }

// Done tells whether the text was one value, taken whole, and nothing after it.
func (r *Reader) Done() bool {
	return !r.bad && r.peek() == 0 && r.i == len(r.b)
}

// Refuse leaves the text to encoding/json.
func (r *Reader) Refuse() { r.bad = true }

// Object enters an object and returns its first key, or nil where it has none or
// is null:
//
//	for key := r.Object(); key != nil; key = r.Next() {
//		switch string(key) {
//		case "text":
//			r.String(&m.Text)
//		default:
//			r.Skip()
//		}
//	}
//
// Exactly one value is read after each key.
func (r *Reader) Object() (key []byte) {
	switch r.peek() {
	case '{':
		r.i++
		if r.peek() == '}' {
			r.i++
			return nil
		}
		return r.key()
	case 'n':
		r.literal("null")
	default:
		r.bad = true
	}
	return nil
}

// Next returns the next key of an object, or nil at its end.
func (r *Reader) Next() (key []byte) {
	switch r.peek() {
	case ',':
		r.i++
		return r.key()
	case '}':
		r.i++
	default:
		r.bad = true
	}
	return nil
}

// Array enters an array and tells whether an element follows; null is as empty.
func (r *Reader) Array() bool {
	switch r.peek() {
	case '[':
		r.i++
		if r.peek() == ']' {
			r.i++
			return false
		}
		return !r.bad
	case 'n':
		r.literal("null")
	default:
		r.bad = true
	}
	return false
}

// More tells whether another element of an array follows.
func (r *Reader) More() bool {
	switch r.peek() {
	case ',':
		r.i++
		return true
	case ']':
		r.i++
	default:
		r.bad = true
	}
	return false
}

// Null takes null and tells whether it was there.
func (r *Reader) Null() bool { return r.peek() == 'n' && r.literal("null") }

// String reads a string; null leaves what is there.
func (r *Reader) String(to *string) {
	switch r.peek() {
	case '"':
		start := r.i
		if simple := r.text(); r.bad {
			return
		} else if raw := r.b[start+1 : r.i-1]; simple || !bytes.ContainsRune(raw, '\\') && utf8.Valid(raw) {
			*to = string(raw)
		} else if json.Unmarshal(r.b[start:r.i], to) != nil {
			r.bad = true
		}
	case 'n':
		r.literal("null")
	default:
		r.bad = true
	}
}

// Int reads a whole number; null makes it nil.
func (r *Reader) Int(to **int64) {
	if r.peek() == 'n' {
		if r.literal("null") {
			*to = nil
		}
		return
	}
	if n := r.whole(); !r.bad {
		*to = &n
	}
}

// Float reads a number; null makes it nil.
func (r *Reader) Float(to **float64) {
	if r.peek() == 'n' {
		if r.literal("null") {
			*to = nil
		}
		return
	}
	start := r.i
	if r.number(); r.bad {
		return
	}
	if x, err := strconv.ParseFloat(string(r.b[start:r.i]), 64); err == nil {
		*to = &x
	} else {
		r.bad = true
	}
}

// Bool reads a truth value; null leaves what is there.
func (r *Reader) Bool(to *bool) {
	switch r.peek() {
	case 't':
		*to = r.literal("true") || *to
	case 'f':
		*to = !r.literal("false") && *to
	default:
		r.literal("null")
	}
}

// Int32s reads an array of whole numbers over what is there; null makes it nil.
func (r *Reader) Int32s(to *[]int32) {
	if r.Null() {
		*to = nil
		return
	}
	out := (*to)[:0]
	for more := r.Array(); more; more = r.More() {
		n := r.whole()
		if n != int64(int32(n)) {
			r.bad = true
		}
		if r.bad {
			return
		}
		out = append(out, int32(n))
	}
	if out == nil {
		out = []int32{}
	}
	*to = out
}

// Raw returns a value as it is written, null included. It is part of the text.
func (r *Reader) Raw(to *json.RawMessage) {
	r.peek()
	start := r.i
	if r.Skip(); !r.bad {
		*to = r.b[start:r.i]
	}
}

// maxDepth is how deep a value may nest that is skipped.
const maxDepth = 64

// Skip reads a value of any type, and that it is well-formed.
func (r *Reader) Skip() { r.skip(0) }

func (r *Reader) skip(depth int) {
	if depth == maxDepth {
		r.bad = true
	}
	switch r.peek() {
	case '"':
		r.text()
	case '{':
		r.i++
		if r.peek() == '}' {
			r.i++
			return
		}
		for more := true; more && !r.bad; {
			if r.peek() != '"' {
				r.bad = true
				return
			}
			r.text()
			r.colon()
			r.skip(depth + 1)
			switch r.peek() {
			case ',':
				r.i++
			case '}':
				r.i++
				more = false
			default:
				r.bad = true
			}
		}
	case '[':
		for more := r.Array(); more && !r.bad; more = r.More() {
			r.skip(depth + 1)
		}
	case 'n':
		r.literal("null")
	case 't':
		r.literal("true")
	case 'f':
		r.literal("false")
	default:
		r.number()
	}
}

// peek returns the next byte that is no space, or 0 where there is none or
// nothing is read any more.
func (r *Reader) peek() byte {
	if r.bad {
		return 0
	}
	for r.i < len(r.b) {
		switch c := r.b[r.i]; c {
		case ' ', '\t', '\r', '\n':
			r.i++
		case 0:
			r.bad = true
			return 0
		default:
			return c
		}
	}
	return 0
}

func (r *Reader) literal(word string) bool {
	if r.bad || len(r.b)-r.i < len(word) || string(r.b[r.i:r.i+len(word)]) != word {
		r.bad = true
		return false
	}
	r.i += len(word)
	return true
}

func (r *Reader) colon() {
	if r.peek() != ':' {
		r.bad = true
		return
	}
	r.i++
}

// key takes a key and the colon. encoding/json takes a key for a field whose name
// differs by case alone; one that could be such is left to it.
func (r *Reader) key() []byte {
	if r.peek() != '"' {
		r.bad = true
		return nil
	}
	start := r.i + 1
	end := start
	for end < len(r.b) && lower[r.b[end]] {
		end++
	}
	if end == len(r.b) || r.b[end] != '"' {
		r.bad = true
		return nil
	}
	r.i = end + 1
	if r.colon(); r.bad {
		return nil
	}
	return r.b[start:end]
}

// lower are the bytes of a key that no other key equals but for case.
var lower = func() (t [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyz0123456789_.-") {
		t[c] = true
	}
	return t
}()

// plain are the bytes that stand for themselves in a string.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// text takes a string with its quotes. simple: it has neither escapes nor bytes
// beyond ASCII.
func (r *Reader) text() (simple bool) {
	simple = true
	i, b := r.i+1, r.b
	for i < len(b) {
		c := b[i]
		i++
		switch {
		case plain[c]:
		case c == '"':
			r.i = i
			return simple
		case c >= utf8.RuneSelf:
			simple = false
		case c == '\\' && i < len(b):
			simple = false
			c := b[i]
			i++
			switch c {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for end := i + 4; i < end; i++ {
					if i >= len(b) || !hex(b[i]) {
						r.bad = true
						return false
					}
				}
			default:
				r.bad = true
				return false
			}
		default:
			r.bad = true
			return false
		}
	}
	r.bad = true
	return false
}

func hex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// whole takes a number without fraction or exponent of at most 18 digits.
func (r *Reader) whole() (n int64) {
	c := r.peek()
	negative := c == '-'
	if negative {
		r.i++
	}
	start := r.i
	for r.i < len(r.b) && digit(r.b[r.i]) {
		n = n*10 + int64(r.b[r.i]-'0')
		if r.i++; r.i-start > 18 {
			r.bad = true
			return 0
		}
	}
	if r.i == start || r.b[start] == '0' && r.i-start > 1 || r.i < len(r.b) && (r.b[r.i] == '.' || r.b[r.i]|0x20 == 'e') {
		r.bad = true
		return 0
	}
	if negative {
		n = -n
	}
	return n
}

// number takes a number as JSON writes it.
func (r *Reader) number() {
	if r.peek() == '-' {
		r.i++
	}
	digits := func() (n int) {
		for r.i < len(r.b) && digit(r.b[r.i]) {
			r.i++
			n++
		}
		return n
	}
	start := r.i
	if n := digits(); n == 0 || n > 1 && r.b[start] == '0' {
		r.bad = true
		return
	}
	if r.i < len(r.b) && r.b[r.i] == '.' {
		r.i++
		if digits() == 0 {
			r.bad = true
			return
		}
	}
	if r.i < len(r.b) && r.b[r.i]|0x20 == 'e' {
		if r.i++; r.i < len(r.b) && (r.b[r.i] == '+' || r.b[r.i] == '-') {
			r.i++
		}
		if digits() == 0 {
			r.bad = true
		}
	}
}
