package deploy

import (
	"cmp"
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
	// secretMax is more than the length of any secret: what the window's edge
	// may have cut a secret in is dropped.
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
	cut := size-from > logWindow
	if cut {
		from = size - logWindow
	}
	if size <= from {
		return nil
	}
	buf := make([]byte, size-from)
	read, _ := f.ReadAt(buf, from)
	text := string(buf[:read])
	if l.redact != nil {
		text = l.redact(text)
	}
	if cut {
		if nl := strings.IndexByte(text, '\n'); nl >= 0 && nl < len(text)-1 {
			text = text[nl+1:]
		} else {
			text = text[min(secretMax, len(text)):]
		}
	}
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return nil
	}
	raw := strings.Split(text, "\n")
	raw = raw[max(0, len(raw)-n):]
	for i, line := range raw {
		raw[i] = cleanLine(line)
	}
	return raw
}

// terminal matches ECMA-48 control sequences and operating system commands.
var terminal = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-Z\\\\-_])")

func cleanLine(line string) string {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	line = strings.ToValidUTF8(line, "�")
	line = terminal.ReplaceAllString(line, "")
	line = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, line)
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

// Redactor replaces each secret in a text by "[secret NAME]". Values shorter
// than four bytes are left alone: replacing them would destroy the text.
func Redactor(secrets map[string]string) func(string) string {
	names := make([]string, 0, len(secrets))
	for name, value := range secrets {
		if len(value) >= 4 {
			names = append(names, name)
		}
	}
	// The longest first: of two that begin alike, the shorter would leave the
	// longer one's end.
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(len(secrets[b])-len(secrets[a]), strings.Compare(a, b))
	})
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, secrets[name], "[secret "+name+"]")
	}
	return strings.NewReplacer(pairs...).Replace
}
