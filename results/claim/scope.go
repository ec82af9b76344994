package claim

import (
	"cmp"
	"fmt"
	"strings"
)

// inScope tells whether what was measured is what the claim is about, by its scope;
// where it is not, that is the verdict. A statement about a shape, an order or a ratio
// holds anywhere unless its scope says otherwise, a figure on the same hardware, model
// and engine alone.
func (j *judgement) inScope(engine string) bool {
	if j.e.Published {
		return true
	}
	standard := "any"
	switch j.c.Kind {
	case "absolute", "relative", "slope", "bound":
		standard = "exact"
	}
	said := func(names ...string) string {
		for _, n := range names {
			if v, ok := j.measuredOn[n]; ok {
				return fmt.Sprint(v)
			}
		}
		return ""
	}
	if want := said("engine"); want != "" && cmp.Or(j.scope.Engine, standard) == "exact" && !sameName(want, engine) {
		j.say(OutOfScope, "published for %s, measured on %s", want, engine)
		return false
	}
	model := cmp.Or(j.scope.Model, standard)
	switch want := said("model"); {
	case model == "any":
	case want != "" && !sameName(want, j.e.Model):
		j.say(OutOfScope, "published for the model %s, measured on %s", want, cmp.Or(j.e.Model, "one that the spec does not name"))
		return false
	case model == "exact" && j.e.Dummy:
		j.say(OutOfScope, "published for the model's own weights, measured with random ones")
		return false
	}
	hardware := cmp.Or(j.scope.Hardware, standard)
	if hardware == "any" {
		return true
	}
	gpu, cpu, count := said("gpu", "gpus", "hardware"), said("cpu"), said("count", "gpu_count")
	switch {
	case gpu == "" && cpu == "":
		j.say(OutOfScope, "the source does not say on which hardware it was measured")
	case gpu == "" && !sameName(cpu, j.e.CPU):
		j.say(OutOfScope, "published for %s, measured on %s", cpu, cmp.Or(j.e.CPU, "a CPU of no name"))
	case gpu == "":
		return true
	case len(j.e.GPUs) == 0:
		j.say(OutOfScope, "published for %s, measured without a GPU", gpu)
	case hardware == "arch" && architecture(gpu) != "" && architecture(gpu) == architecture(j.e.GPUs[0]):
		return true
	case !sameName(gpu, j.e.GPUs[0]):
		j.say(OutOfScope, "published for %s, measured on %s", gpu, j.e.GPUs[0])
	case hardware == "exact" && count != "" && count != fmt.Sprint(len(j.e.GPUs)):
		j.say(OutOfScope, "published for %s of %s, measured on a machine with %d", count, gpu, len(j.e.GPUs))
	default:
		return true
	}
	return false
}

// sameName tells whether one name of a device, model or engine holds all the words of
// the other, as "RTX PRO 6000 Blackwell" and "NVIDIA RTX PRO 6000 Blackwell Server
// Edition" do.
func sameName(x, y string) bool {
	split := func(s string) []string {
		return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') })
	}
	a, b := split(x), split(y)
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	words := map[string]bool{}
	for _, w := range b {
		words[w] = true
	}
	for _, w := range a {
		if !words[w] {
			return false
		}
	}
	return true
}

// architectures are families of devices by words of their names, the more particular
// ones first.
var architectures = []struct{ name, words string }{
	{"blackwell-rtx", "RTX PRO 6000 Blackwell"}, {"blackwell-rtx", "RTX 5090"}, {"blackwell-rtx", "RTX 5080"}, {"blackwell-rtx", "GB10"},
	{"blackwell", "B200"}, {"blackwell", "GB200"}, {"blackwell", "B300"}, {"blackwell", "GB300"},
	{"hopper", "H100"}, {"hopper", "H200"}, {"hopper", "H800"}, {"hopper", "H20"}, {"hopper", "GH200"},
	{"ada", "RTX 4090"}, {"ada", "L40S"}, {"ada", "L40"}, {"ada", "L4"},
	{"ampere", "A100"}, {"ampere", "A800"}, {"ampere", "A10"}, {"ampere", "A6000"}, {"ampere", "RTX 3090"},
	{"cdna4", "MI350X"}, {"cdna4", "MI355X"}, {"cdna3", "MI300X"}, {"cdna3", "MI325X"}, {"rdna3", "7900 XT"}, {"rdna3", "7900 XTX"}, {"rdna4", "R9700"},
}

// architecture is the family of a device, empty for one that is not known.
func architecture(device string) string {
	for _, a := range architectures {
		if sameName(a.words, device) && len(strings.Fields(a.words)) <= len(strings.Fields(device)) {
			return a.name
		}
	}
	return ""
}
