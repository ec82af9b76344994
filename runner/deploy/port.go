package deploy

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FreePort gives a TCP port of host that was free a moment ago. The server may
// still lose it to somebody else; then it ends with port-in-use and another
// launch takes another port.
func FreePort(host string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, fmt.Errorf("find a free port on %s: %w", host, err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// PortInUseError says that a requested address is taken.
type PortInUseError struct {
	Addr   string
	Holder *Process // who listens there; nil where that could not be seen
}

func (e *PortInUseError) Error() string {
	if e.Holder == nil {
		return "port in use: " + e.Addr + " is taken by a process that this user cannot see"
	}
	msg := fmt.Sprintf("port in use: %s is taken by %v", e.Addr, *e.Holder)
	if e.Holder.Deployment != "" {
		msg += ", left over from deployment " + e.Holder.Deployment
	}
	return msg
}

// CheckPort tells before a launch whether a server could listen on addr
// ("host:port"): nil, a *PortInUseError, or the system's answer where the
// address is not this machine's or not permitted.
func CheckPort(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l.Close()
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("check port %s: %w", addr, err)
	}
	inUse := &PortInUseError{Addr: addr}
	if _, p, err := net.SplitHostPort(addr); err == nil {
		if port, err := strconv.Atoi(p); err == nil {
			inUse.Holder = holder(port)
		}
	}
	return inUse
}

// holder finds the process with a listening socket on the port, whatever the
// address: a listener on all addresses takes each of them.
func holder(port int) *Process {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		for _, inode := range listeners(table, port) {
			sockets["socket:["+inode+"]"] = true
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	for _, pid := range pids() {
		fds := "/proc/" + strconv.Itoa(pid) + "/fd"
		entries, err := os.ReadDir(fds)
		if err != nil {
			continue // another user's, or gone
		}
		for _, e := range entries {
			if link, err := os.Readlink(fds + "/" + e.Name()); err == nil && sockets[link] {
				if s, ok := readStat(pid); ok {
					m, _ := envValue(pid, Marker)
					return &Process{PID: pid, Start: s.start, Name: s.name, Deployment: m}
				}
			}
		}
	}
	return nil
}

// listeners gives the inodes of the sockets in state LISTEN (0A) on the port,
// from the kernel's table (proc_pid_net(5)): columns sl, local address as
// hexadecimal ADDRESS:PORT, remote address, state, …, the inode tenth.
func listeners(table string, port int) []string {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	var inodes []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		col := strings.Fields(lines.Text())
		if len(col) < 10 || col[3] != "0A" {
			continue
		}
		b, err := hex.DecodeString(col[1][strings.LastIndexByte(col[1], ':')+1:])
		if err == nil && len(b) == 2 && int(b[0])<<8|int(b[1]) == port {
			inodes = append(inodes, col[9])
		}
	}
	return inodes
}
