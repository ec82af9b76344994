package deploy

import (
	"testing"
	"testing/fstest"
)

func TestOOMKills(t *testing.T) {
	events := "low 0\nhigh 12\nmax 3\noom 2\noom_kill 5\noom_group_kill 0\n"
	for name, c := range map[string]struct {
		files  map[string]string
		count  int64
		source string
	}{
		"v2": {map[string]string{"proc/self/cgroup": "0::/user.slice/job\n", "sys/fs/cgroup/user.slice/job/memory.events": events},
			5, "/sys/fs/cgroup/user.slice/job/memory.events"},
		"v2 in a container": {map[string]string{"proc/self/cgroup": "0::/docker/4711\n", "sys/fs/cgroup/memory.events": events},
			5, "/sys/fs/cgroup/memory.events"},
		"v1": {map[string]string{"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/slurm/job_7\n0::/\n",
			"sys/fs/cgroup/memory/slurm/job_7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"},
			1, "/sys/fs/cgroup/memory/slurm/job_7/memory.oom_control"},
		"v2 root, which has no such file": {map[string]string{"proc/self/cgroup": "0::/\n"}, 0, ""},
		"before Linux 4.13":               {map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\n"}, 0, ""},
		"nonsense":                        {map[string]string{"proc/self/cgroup": "\x00\n::\n0::/../..\n", "sys/fs/cgroup/memory.events": "oom_kill x\n"}, 0, ""},
		"nothing":                         {nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for f, text := range c.files {
				root[f] = &fstest.MapFile{Data: []byte(text)}
			}
			count, source, ok := oomKills(root)
			if count != c.count || source != c.source || ok != (c.source != "") {
				t.Errorf("%d %q %v", count, source, ok)
			}
		})
	}
}
