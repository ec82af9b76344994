//go:build !amd64

package cpu

func machinePaths() []*inner { return nil }
