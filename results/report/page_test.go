package report

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"

	"twopoint/results/history/historytest"
	"twopoint/results/run"
	"twopoint/results/table"
)

// A run with crashes, refused pairs and hostile words gives a page that shows them and
// does nothing by them.
func TestPage(t *testing.T) {
	r := historytest.Eventful()
	tables := table.Derive(r.ID, r.History, &run.Environment{Hostname: "box", CPU: "a CPU"})
	const hostile = `</script><script>alert(1)</script><img src=x onerror=alert(2)>`
	tables.Runs[0].Title, tables.Runs[0].Question = "T"+hostile, "Q"+hostile
	for i := range tables.Points {
		tables.Points[i].Evidence, tables.Points[i].FailureMessage, tables.Points[i].Doubts = hostile, hostile, hostile
	}
	for i := range tables.Deployments {
		tables.Deployments[i].LogTail, tables.Deployments[i].Argv = hostile, `["`+"a"+`"]`
	}
	tables.Claims = []table.ClaimRow{
		{ClaimID: "p/decode_tok_s/" + tables.Points[0].Variant + "/1000", Metric: "decode_tok_s", Published: "50", Verdict: "deviates", Source: hostile, Why: hostile},
		{ClaimID: "p/odd", Published: hostile, Verdict: "reproduced"},
	}
	var b bytes.Buffer
	if err := Page(&b, tables, "runs/x", "# T\n\nA *story*. "+hostile+"\n\n[x](javascript:alert(3))\n", []File{{"spec.cue", hostile}}); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, bad := range []string{"<script>alert", "<img", "javascript:alert", ">NaN", "+Inf", "\"http", "src="} {
		if strings.Contains(strings.ReplaceAll(text, "src=x", ""), bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	for _, want := range []string{"2 claims: 1 reproduced, 1 deviates", "gpu-oom", "<em>story</em>", `class="hollow"`, `class="dead"`, `class="fit"`, "&lt;/script&gt;", "runs/x/points.parquet"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not hold %q", want)
		}
	}
	for _, p := range tables.Points {
		if !strings.Contains(text, `id="`+p.PointKey+`"`) {
			t.Errorf("%s is not on the page", p.PointKey)
		}
	}
	if open, end := len(regexp.MustCompile(`<(table|details|section|svg)[ >]`).FindAllString(text, -1)), len(regexp.MustCompile(`</(table|details|section|svg)>`).FindAllString(text, -1)); open != end {
		t.Errorf("%d elements are opened and %d closed", open, end)
	}
}

// A run of nothing has a page too.
func TestEmptyPage(t *testing.T) {
	r := historytest.New(historytest.Experiment([]int{256}, historytest.Variant("v")))
	if err := Page(io.Discard, table.Derive(r.ID, r.History, nil), "x", "", nil); err != nil {
		t.Fatal(err)
	}
}
