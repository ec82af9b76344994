// Package token is the tokenizer of the embedded server's random models: text
// in, ids out, and back. It never fails: every byte is a token of its own, and
// a few hundred common words and endings are shorter spellings of their bytes.
//
// Text is cut before each word (letters, with the one space before them), and
// no token crosses a cut. So Encode(a+b) is Encode(a) followed by Encode(b)
// wherever a ends with a whole word and b starts with a space, and Decode is
// the inverse of Encode on any bytes.
package token

import "strings"

const (
	Vocab = 512       // number of ids
	End   = Vocab - 1 // end of sequence; no text encodes to it, and it decodes to nothing
)

// words are the tokens from 256 on. A word that starts a sentence or follows a
// space is spelt with that space.
var words = strings.Fields(`
_the _of _and _to _in _a _is _that _for _it _as _was _with _be _by _on _not _he _his _but _at _are _this _have
_from _or _had _an _they _which _you _were _her _all _she _there _would _their _we _him _been _has _when _who
_will _more _no _if _out _so _said _what _up _its _about _into _than _them _can _only _other _new _some _could
_time _these _two _may _then _do _first _any _my _now _such _like _our _over _man _me _even _most _made _after
_also _did _many _before _must _through _back _years _where _much _your _way _well _down _should _because _each
_just _those _people _how _too _little _state _good _very _make _world _still _own _see _men _work _long _get
_here _between _both _life _being _under _never _day _same _another _know _while _last _might _us _great _old
_year _off _come _since _against _go _came _right _used _take _three _water _light _house _night _part _place
_number _small _found _went _say _once _every _again _without _thought _head _hand _read _write _line _page
_memory _token _model _server _context _cache _step
the and ing ion ent er ed es ly al re in on at or an en it is ar st nd th ou le ti to of se me ve de ri ro ic ne
ea ra ce li ch ll be ma si om ur ca el ta la ns ec ss
`)

var (
	spelling [Vocab]string
	ids      = map[string]int32{}
	longest  int
)

func init() {
	for b := range 256 {
		spelling[b] = string([]byte{byte(b)})
	}
	next := 256
	add := func(s string) {
		if _, taken := ids[s]; taken || next == End {
			return
		}
		ids[s], spelling[next] = int32(next), s
		longest = max(longest, len(s))
		next++
	}
	for _, w := range words {
		add(strings.ReplaceAll(w, "_", " "))
	}
	// Every other id spells a pair of letters, so that all ids decode.
	for _, a := range "abcdefghijklmnopqrstuvwxyz" {
		for _, b := range "eaoiutnshr" {
			add(string(a) + string(b))
		}
	}
}

func letter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

// Encode returns the ids of text.
func Encode(text string) []int32 {
	out := make([]int32, 0, len(text)/3+1)
	for i := 0; i < len(text); {
		end := i
		if text[end] == ' ' {
			end++
		}
		for end < len(text) && letter(text[end]) {
			end++
		}
		if end == i {
			out = append(out, int32(text[i]))
			i++
			continue
		}
		for i < end {
			n := min(longest, end-i)
			for ; n > 1; n-- {
				if id, ok := ids[text[i:i+n]]; ok {
					out = append(out, id)
					break
				}
			}
			if n == 1 {
				out = append(out, int32(text[i]))
			}
			i += n
		}
	}
	return out
}

// Decode returns the text of ids. End and ids outside the vocabulary decode to
// nothing.
func Decode(tokens []int32) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(Spelling(t))
	}
	return b.String()
}

// Spelling is the text of one id.
func Spelling(t int32) string {
	if t < 0 || t >= End {
		return ""
	}
	return spelling[t]
}

// Printable reports whether t may stand in generated text: End, or a spelling
// of printable ASCII and line feeds.
func Printable(t int32) bool {
	if t == End {
		return true
	}
	s := Spelling(t)
	for i := range len(s) {
		if c := s[i]; c != '\n' && (c < ' ' || c > '~') {
			return false
		}
	}
	return s != ""
}
