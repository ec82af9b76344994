package deploy

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// OOMKills is how many processes the kernel has killed so far for want of memory
// in the control group that this process, and with it every server it starts,
// is in; source is the file that says so. ok is false where nothing tells. The
// count is cgroup v2's "oom_kill" in memory.events or v1's in memory.oom_control
// (kernel documentation, cgroup-v2 and cgroup-v1/memory).
func OOMKills() (count int64, source string, ok bool) {
	return oomKills(os.DirFS("/"))
}

func oomKills(root fs.FS) (count int64, source string, ok bool) {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, "", false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(f) != 3 {
			continue
		}
		var base, file string
		switch {
		case f[0] == "0" && f[1] == "":
			base, file = "sys/fs/cgroup", "memory.events"
		case f[1] == "memory":
			base, file = "sys/fs/cgroup/memory", "memory.oom_control"
		default:
			continue
		}
		// In a container the path may be the host's, and the group the root of what is mounted.
		for _, name := range []string{path.Join(base, f[2], file), path.Join(base, file)} {
			text, err := fs.ReadFile(root, name)
			if err != nil {
				continue
			}
			for field := range strings.Lines(string(text)) {
				if v, found := strings.CutPrefix(field, "oom_kill "); found {
					if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
						return n, "/" + name, true
					}
				}
			}
		}
	}
	return 0, "", false
}
