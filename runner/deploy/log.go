package deploy

import (
	"cmp"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// logWindow is how much of the end of a log is read.
	logWindow = 1 << 20
	// lineMax is the length of a line that LogTail gives, in bytes.
	lineMax = 2000
	// secretMax is more than the length of any secret: so much is looked at before
	// the part that is asked for, whose edge may cut a secret in two.
	secretMax = 4096
)

// LogTail gives the last n lines of the server's output so far, oldest first:
// valid UTF-8, without terminal control sequences, of at most 2,000 bytes a
// line, secrets removed. Of a line that was overwritten with carriage returns
// (a progress bar) only the last state is kept. Only the last 1 MiB is looked at.
func (d *Deployment) LogTail(n int) []string { return d.log.lines(d.log.start, n) }

// LogMark is the log's length now, to hand to LogSince.
func (d *Deployment) LogMark() int64 { return d.log.size() }

// LogSince is LogTail for what was written after the mark.
func (d *Deployment) LogSince(mark int64, n int) []string {
	return d.log.lines(max(mark, d.log.start), n)
}

// logFile is the part of a file from start on.
type logFile struct {
	path   string
	start  int64
	redact func(string) string
}

func (l logFile) size() int64 {
	info, err := os.Stat(l.path)
	if err != nil {
		return l.start
	}
	return info.Size()
}

func (l logFile) lines(from int64, n int) []string {
	f, err := os.Open(l.path)
	if err != nil || n <= 0 {
		return nil
	}
	defer f.Close()
	size := l.size()
	from = max(from, size-logWindow)
	if size <= from {
		return nil
	}
	before := min(from, secretMax)
	buf := make([]byte, before+size-from)
	read, _ := f.ReadAt(buf, from-before)
	text := l.since(string(buf[:read]), int(min(before, int64(read))))
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return nil
	}
	raw := strings.Split(text, "\n")
	raw = raw[max(0, len(raw)-n):]
	for i, line := range raw {
		line = cleanLine(line)
		if l.redact != nil { // a secret may have held what cleaning takes out
			line = l.redact(line)
		}
		raw[i] = cutLine(line)
	}
	return raw
}

// since is what follows the first before bytes of a text, without secrets, and
// without the end of a secret that began before: what that part alone and the
// text as a whole have in common when both are redacted.
func (l logFile) since(text string, before int) string {
	if l.redact == nil {
		return text[before:]
	}
	whole, part := l.redact(text), l.redact(text[before:])
	same := 0
	for same < min(len(whole), len(part)) && whole[len(whole)-1-same] == part[len(part)-1-same] {
		same++
	}
	return part[len(part)-same:]
}

// terminal matches ECMA-48 control sequences and operating system commands.
var terminal = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-Z\\\\-_])")

func cleanLine(line string) string {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	line = strings.ToValidUTF8(line, "�")
	line = terminal.ReplaceAllString(line, "")
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, line)
}

// cutLine takes what is too much out of the middle.
func cutLine(line string) string {
	if len(line) <= lineMax {
		return line
	}
	const gap = " … "
	head, tail := lineMax/2, len(line)-(lineMax/2-len(gap))
	for head > 0 && !utf8.RuneStart(line[head]) {
		head--
	}
	for tail < len(line) && !utf8.RuneStart(line[tail]) {
		tail++
	}
	return line[:head] + gap + line[tail:]
}

// Redactor replaces each secret in a text by "[secret NAME]": as it is, as JSON
// and URLs write it, wrapped over lines, and at the text's end the beginning of
// one, from eight bytes on, for the rest may not have been written yet. Values
// shorter than four bytes are left alone: replacing them would destroy the text.
func Redactor(secrets map[string]string) func(string) string {
	type secret struct{ name, value string }
	var all []secret
	for name, value := range secrets {
		if len(value) < 4 {
			continue
		}
		quoted, _ := json.Marshal(value)
		for _, form := range []string{value, string(quoted[1 : len(quoted)-1]), url.QueryEscape(value), url.PathEscape(value)} {
			if s := (secret{name, form}); !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	// The longest first: of two that begin alike, the shorter would leave the
	// longer one's end.
	slices.SortFunc(all, func(a, b secret) int {
		return cmp.Or(len(b.value)-len(a.value), strings.Compare(a.name, b.name), strings.Compare(a.value, b.value))
	})
	if len(all) == 0 {
		return func(text string) string { return text }
	}
	var pairs []string
	for _, s := range all {
		pairs = append(pairs, s.value, "[secret "+s.name+"]")
	}
	replace := strings.NewReplacer(pairs...)
	return func(text string) string {
		text = replace.Replace(text)
		solid := strings.Join(strings.Fields(text), "")
		for _, s := range all {
			if len(s.value) >= 8 && utf8.ValidString(s.value) && strings.Contains(solid, strings.Join(strings.Fields(s.value), "")) {
				text = wrapped(s.value).ReplaceAllLiteralString(text, "[secret "+s.name+"]")
			}
			head, more := text, ""
			if strings.HasSuffix(text, "…") { // it was cut here
				head, more = strings.TrimSuffix(text, "…"), "…"
			}
			for n := min(len(s.value)-1, len(head)); n >= 8; n-- {
				if strings.HasSuffix(head, s.value[:n]) {
					text = head[:len(head)-n] + "[secret " + s.name + "]" + more
					break
				}
			}
		}
		return text
	}
}

// wrapped matches a text with white space at any place in it.
func wrapped(text string) *regexp.Regexp {
	var b strings.Builder
	for _, r := range strings.Join(strings.Fields(text), "") {
		if b.Len() > 0 {
			b.WriteString(`\s*`)
		}
		b.WriteString(regexp.QuoteMeta(string(r)))
	}
	return regexp.MustCompile(b.String())
}
