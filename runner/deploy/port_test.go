package deploy

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestPorts(t *testing.T) {
	port, err := FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if err := CheckPort(addr); err != nil {
		t.Fatalf("a free port: %v", err)
	}
	for _, listen := range []string{addr, ":" + strconv.Itoa(port)} { // one address, all addresses
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		err = CheckPort(addr)
		var inUse *PortInUseError
		if !errors.As(err, &inUse) || inUse.Holder == nil || inUse.Holder.PID != os.Getpid() {
			t.Errorf("CheckPort with a listener on %q = %v (%+v)", listen, err, inUse)
		} else if !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
			t.Errorf("message %q does not name the process", err)
		}
		l.Close()
	}
	for _, bad := range []string{"nonsense", "127.0.0.1:99999", "192.0.2.1:80"} {
		var inUse *PortInUseError
		if err := CheckPort(bad); err == nil || errors.As(err, &inUse) {
			t.Errorf("CheckPort(%q) = %v", bad, err)
		}
	}
	if _, err := FreePort("192.0.2.1"); err == nil {
		t.Error("a free port on an address that is not ours")
	}
}
