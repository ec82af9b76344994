package cpu

import (
	"syscall"
	"testing"
	"unsafe"
)

// atEnd returns n elements behind which lies memory that faults when read.
func atEnd(t *testing.T, n int) []float32 {
	t.Helper()
	page := syscall.Getpagesize()
	size := roundUp(4*n, page)
	mem, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mprotect(mem[size:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&mem[size-4*n])), n)
}
